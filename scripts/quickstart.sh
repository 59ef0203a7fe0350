#!/bin/bash
# From a fresh clone on Debian 12 to two admission reports: installs packages, builds, and runs `asymkv admit` on the two
# small models of this repository. Needs root for the packages only; a second run reuses packages and build.
#
#     scripts/quickstart.sh [FOLDER]      (default: asymkv-quickstart in the current folder)
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${1:-asymkv-quickstart}
"$source_dir/scripts/install_deps.sh"
"$source_dir/scripts/build.sh" release asymkv
asymkv=$source_dir/build/release/apps/asymkv/asymkv

start=$SECONDS
for model in probe-robust probe-fragile; do
  if [ -e "$out/$model" ]; then
    echo "quickstart.sh: $out/$model is there from an earlier run; remove it or name another folder" >&2
    exit 1
  fi
  "$asymkv" admit "$source_dir/models/$model" --protocol builtin --out "$out/$model"
done
echo
echo "admission of both models took $((SECONDS - start)) s; the reports:"
for model in probe-robust probe-fragile; do echo "  $(realpath "$out/$model/report.html")"; done
