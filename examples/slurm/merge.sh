#!/bin/bash
#SBATCH --job-name=asymkv-merge
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
#SBATCH --time=01:00:00
# Merges the shards into $OUT/run and checks the result; submit.sh starts it once every shard has finished.
set -euo pipefail
folders=()
for ((shard = 1; shard <= SHARDS; shard++)); do folders+=("$OUT/shards/$shard"); done
"$ASYMKV" gate merge "$OUT/run" "${folders[@]}"
exec "$ASYMKV" gate verify "$OUT/run"
