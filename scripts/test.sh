#!/bin/bash
# Installs packages, builds the release preset and runs every test of it.
#
#     scripts/test.sh               all but the tests labelled large; fetches SmolLM2-135M (98 MB) once
#     scripts/test.sh --large       all tests, an admission killed at 50 moments; also fetches Qwen2.5-Coder 0.5B and 1.5B,
#                                 Gemma-3-270m and vocabularies (2 GB)
#     scripts/test.sh --no-models   without the tests that need a fetched model
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

exclude=large
models=(smollm2-135m)
case "${1:-}" in
  "") ;;
  --large)
    exclude=
    export ASYMKV_KILLS=50
    models+=(qwen2.5-coder-0.5b qwen2.5-coder-1.5b gemma-3-270m)
    ;;
  --no-models)
    exclude='large|model'
    models=()
    ;;
  *)
    echo "test.sh: unknown argument \"$1\"; known: --large, --no-models" >&2
    exit 2
    ;;
esac

scripts/install_deps.sh
for model in "${models[@]}"; do scripts/fetch_model.py "$model"; done
if [ -z "$exclude" ]; then scripts/fetch_vocabs.py; fi
scripts/build.sh release
# Beside each other: many tests use one thread for most of their time.
ctest --test-dir build/release --output-on-failure --parallel "${ASYMKV_BUILD_JOBS:-$(nproc)}" ${exclude:+-LE "$exclude"}
