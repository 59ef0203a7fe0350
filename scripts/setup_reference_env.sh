#!/bin/bash
# Makes the Python environment of the parity tests: torch, transformers, tokenizers, safetensors, gguf and numpy from
# wheels pinned by version and SHA-256 (tests/parity/requirements.txt). About 4.5 GB on disk; needs Python 3.11 on x86-64 Linux.
#
#     scripts/setup_reference_env.sh [FOLDER]     (default: .venv/reference in the source tree)
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$source_dir/.venv/reference}
python=${PYTHON:-python3.11}

if ! "$python" -c 'import sys, platform; sys.exit((sys.version_info[:2], platform.machine()) != ((3, 11), "x86_64"))'; then
  echo "setup_reference_env.sh: $python is not Python 3.11 on x86-64; set PYTHON to one" >&2
  exit 1
fi
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
  --only-binary :all: -r "$source_dir/tests/parity/requirements.txt"
"$folder/bin/python" -c 'import gguf, numpy, safetensors, tokenizers, torch, transformers
print(f"torch {torch.__version__}, transformers {transformers.__version__}, numpy {numpy.__version__}")'
echo "reference environment: $folder"
