#!/usr/bin/env bash
# srun_test.sh DCKPT CHECKPOINT [PMI DCKPT_MPI]…: processes that srun starts, inside of slurm_cluster.sh,
# share the work if a PMI connects them, and refuse it if none does.
set -euo pipefail
dckpt=$1 checkpoint=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$dckpt" "$folder/dckpt"
"$folder/dckpt" digest "$checkpoint" >"$folder/one"
while (($#)); do
  ln -sf "$2" "$folder/dckpt-mpi"
  srun -n 3 --mpi="$1" "$folder/dckpt" digest "$checkpoint" >"$folder/three"
  cmp "$folder/one" "$folder/three"
  echo "srun --mpi=$1 shares the work"
  shift 2
done
status=0
srun -n 3 --mpi=none "$folder/dckpt" digest "$checkpoint" >"$folder/out" 2>"$folder/err" || status=$?
grep -c "use srun --mpi=pmix" "$folder/err" | grep -qx 1
((status == 6)) && [[ ! -s $folder/out ]]
echo "srun --mpi=none is refused once"
# The script of a job is one process, however many tasks the job has.
printf '#!/bin/sh\n%s digest %s\n' "$folder/dckpt" "$checkpoint" >"$folder/job.sh"
sbatch -Q -W -n 3 -o "$folder/batch" "$folder/job.sh"
cmp "$folder/one" "$folder/batch"
echo "a batch script is one process"
