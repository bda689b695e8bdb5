#!/usr/bin/env bash
# A folder job as a SLURM array: each task does one shard, and a last job merges them. No task talks to another.
#
#   jobs=$(sbatch --parsable --array=1-16 examples/deploy/slurm_array.sh BUNDLE pictures/ /scratch/out)
#   sbatch --dependency="afterok:$jobs" --wrap "vtk merge /scratch/out.shards/* -o /scratch/out"
#
# A task that failed or was preempted goes on where it stopped: submit the same array again, or use --requeue.
#SBATCH --job-name=vtk-run
#SBATCH --cpus-per-task=8
#SBATCH --requeue
set -euo pipefail
bundle=$1 pictures=$2 out=$3
# Arrays are numbered from where the user says; shards from 1.
shard=$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN + 1))
exec vtk run "$bundle" "$pictures" -o "$out.shards/$shard" --shard "$shard/$SLURM_ARRAY_TASK_COUNT" --keep-going
