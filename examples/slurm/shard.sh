#!/bin/bash
#SBATCH --job-name=asymkv-shard
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# One shard of an admission; submit.sh sets the variables. --resume starts an empty folder from the first case and goes
# on where a requeued task was stopped, so the same line serves both.
set -euo pipefail
shard=${SLURM_ARRAY_TASK_ID:?shard.sh: submit it as an array, from 1}
read -r -a more <<<"$ARGS"
exec "$ASYMKV" admit "$MODEL" --protocol "$PROTOCOL" --shard "$shard/$SHARDS" --out "$OUT/shards/$shard" --resume "${more[@]}"
