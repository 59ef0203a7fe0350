#!/bin/bash
# Style and structure of the tree: clang-format on every C++ file, clang-tidy, the structure tests.
#
#     tools/check.sh                 format and structure of everything, clang-tidy on the modules below
#     tools/check.sh --fix           formats in place first
#     tools/check.sh --tidy-all      clang-tidy on every source
#
# Needs the compile commands of a configured preset (scripts/build.sh release). tools/tidy.py says which files it took.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fix=
# The modules that clang-tidy has seen whole and finds nothing in; the others follow as they are cleaned.
mapfile -t tidy_args < <(git ls-files 'src/asymkv/base/*.cc' 'src/asymkv/tensor/*.cc' 'src/asymkv/kv/*.cc' 'src/asymkv/ops/*.cc' \
  'src/asymkv/record/*.cc' | grep -v _test.cc)
for argument in "$@"; do
  case "$argument" in
    --fix) fix=1 ;;
    --tidy-all) tidy_args=() ;;
    *)
      echo "check.sh: unknown argument \"$argument\"; known: --fix, --tidy-all" >&2
      exit 2
      ;;
  esac
done

sources=$(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
if [ -n "$fix" ]; then xargs clang-format -i <<<"$sources"; fi
status=0
echo "clang-format: $(wc -l <<<"$sources") files"
xargs clang-format --dry-run --Werror <<<"$sources" || status=1
python3 tests/structure/structure_test.py || status=1
python3 tests/structure/tool_proof_test.py || status=1
python3 tools/tidy.py "${tidy_args[@]}" || status=1
exit $status
