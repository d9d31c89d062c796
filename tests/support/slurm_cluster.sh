#!/usr/bin/env bash
# slurm_cluster.sh COMMAND…: runs COMMAND in a SLURM cluster that consists of this machine and lives in a
# temporary folder. Ends with 77 where that is impossible.
set -euo pipefail
for program in munged slurmctld slurmd srun; do
  command -v $program >/dev/null || { echo "skipped: $program is missing (scripts/bootstrap test installs it)"; exit 77; }
done
((EUID == 0)) || { echo "skipped: only root can start a cluster"; exit 77; }
folder=$(mktemp -d)  # short: sockets live there
chmod 755 "$folder"  # munged wants it so
node=$(hostname -s)
port=$((20000 + $$ % 20000))
mkdir "$folder/state" "$folder/spool"
daemons=()
close() {
  local status=$?
  if ((status)); then tail -n 5 "$folder"/*.log >&2; fi
  kill "${daemons[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$folder"
  exit "$status"
}
trap close EXIT
head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 400 "$folder/munge.key"
cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF=$folder/slurm.conf
munged --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
       --seed-file="$folder/munged.seed" --log-file="$folder/munged.log" >"$folder/munge_out.log" 2>&1 &
daemons+=($!)
slurmctld -D >"$folder/slurmctld.log" 2>&1 &
daemons+=($!)
slurmd -D -N "$node" >"$folder/slurmd.log" 2>&1 &
daemons+=($!)
for ((i = 0; i < 100; ++i)); do
  [[ $(sinfo -h -o %T 2>/dev/null) == idle ]] && break
  sleep 0.2
done
"$@"
