#!/usr/bin/env bash
# Converts a checkpoint with the tasks of a job array: sbatch --array=0-15 slurm.sh SRC DST POOL [OPTION…]
#
# SRC, DST and POOL lie on a file system that all nodes see. Tasks may start at different times;
# the job is done when the first of them has ended with 0.
#SBATCH --job-name=dckpt-convert
#SBATCH --ntasks=1
#SBATCH --requeue
set -euo pipefail
source=$1 destination=$2 pool=$3
exec "${DCKPT:-dckpt}" convert "$source" "$destination" --workers "$pool" "${@:4}"
