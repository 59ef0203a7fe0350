#!/bin/bash
# Admits a model on a Slurm cluster: one array task a shard, then one task that merges them.
#
#     MODEL=/models/qwen.gguf OUT=/scratch/qwen-admission examples/slurm/submit.sh 7
#     MODEL=... OUT=... PROTOCOL=quick ARGS="--math-questions /data/test.jsonl" examples/slurm/submit.sh 7 --partition=cpu
#
# MODEL, OUT, PROTOCOL and the files that ARGS names must be readable from every node. Further arguments go to sbatch.
# Every shard has to run the same build on the same kind of worker: gate merge refuses another one by name.
set -euo pipefail
shards=${1:?submit.sh: say into how many shards the run is cut}
shift
: "${MODEL:?submit.sh: set MODEL to the model}" "${OUT:?submit.sh: set OUT to a folder that all nodes see}"
export MODEL OUT PROTOCOL="${PROTOCOL:-builtin}" ARGS="${ARGS:-}" ASYMKV="${ASYMKV:-asymkv}" SHARDS="$shards"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$OUT/logs"
job=$(sbatch --parsable --array="1-$shards" --output="$OUT/logs/shard-%a.log" "$@" "$here/shard.sh")
sbatch --parsable --dependency="afterok:${job%%;*}" --output="$OUT/logs/merge.log" "$@" "$here/merge.sh"
