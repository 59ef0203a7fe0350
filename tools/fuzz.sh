#!/bin/bash
# Runs every fuzz target of build/fuzz, two at a time, from its seeds in fuzz/corpus.
#
#     tools/fuzz.sh [SECONDS]      (default 60 each; build first: scripts/build.sh fuzz)
#
# New inputs stay in build/fuzz/found/TARGET. A fault prints the end of its log, leaves the input beside that folder and
# makes the exit status 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export ASYMKV_FUZZ_SECONDS=${1:-60}

run_one() {
  local name=$1 found=build/fuzz/found
  mkdir -p "$found/$name"
  if ! "build/fuzz/fuzz/$name" -max_total_time="$ASYMKV_FUZZ_SECONDS" -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$found/$name-" "$found/$name" "fuzz/corpus/$name" >"$found/$name.log" 2>&1; then
    echo "$name: FAULT, inputs: $(ls "$found/$name"-* 2>/dev/null | tr '\n' ' ')"
    tail -40 "$found/$name.log"
    exit 1
  fi
  echo "$name: $(awk '/number_of_executed_units/ {print $2}' "$found/$name.log") inputs, no fault"
}
export -f run_one

names=()
for target in build/fuzz/fuzz/fuzz_*; do
  if [ -f "$target" ] && [ -x "$target" ]; then names+=("$(basename "$target")"); fi
done
if [ ${#names[@]} -eq 0 ]; then
  echo "fuzz.sh: no targets in build/fuzz/fuzz; build them with scripts/build.sh fuzz" >&2
  exit 1
fi
printf '%s\n' "${names[@]}" | xargs -P 2 -I{} bash -c 'run_one {}'
