#!/usr/bin/env bash
# A Slurm cluster of one machine in a folder that goes away: munged, slurmctld and slurmd of Debian's slurm-wlm, with keys, ports
# and state of their own. Runs the command with SLURM_CONF set, inside no allocation: it says srun itself. Needs root (slurmd
# starts tasks for others) and slurm-wlm with its PMIx plugin; where these are missing it says so and exits 77.
#   one_machine.sh COMMAND [WORDS...]
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }

skip() {
  echo "skipped: $1" >&2
  exit 77
}
export PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || skip "slurmd needs root"
for tool in srun slurmctld slurmd munged; do command -v $tool >/dev/null || skip "no $tool here (Debian: slurm-wlm)"; done
ls /usr/lib/*/slurm-wlm/mpi_pmix.so >/dev/null 2>&1 || skip "Slurm has no PMIx plugin here (Debian: slurm-wlm-basic-plugins)"

work=$(mktemp -d /tmp/wt-slurm-XXXXXX)
pids=()
down() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap down EXIT
chmod 755 "$work"
mkdir "$work/state" "$work/spool"

head -c 1024 /dev/urandom >"$work/munge.key"
chmod 600 "$work/munge.key"
munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
  --seed-file="$work/munge.seed" --log-file="$work/munge.log" >"$work/munged.out" 2>&1 &
pids+=($!)

# Ports that no other cluster of this machine uses, as far as a glance can tell.
port=$((20000 + $$ % 20000))
host=$(hostname -s)
cores=$(nproc)
cat >"$work/slurm.conf" <<CONF
ClusterName=windtunnel
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CryptoType=crypto/munge
CredType=cred/munge
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$work/slurm.conf
for _ in $(seq 50); do [ -S "$work/munge.socket" ] && break; sleep 0.1; done
slurmctld -D -f "$SLURM_CONF" >"$work/slurmctld.out" 2>&1 &
pids+=($!)
slurmd -D -f "$SLURM_CONF" -N "$host" >"$work/slurmd.out" 2>&1 &
pids+=($!)
for _ in $(seq 100); do
  [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && break
  sleep 0.2
done
if [ "$(sinfo -h -o %T 2>/dev/null)" != idle ]; then
  tail -n 5 "$work"/*.log "$work"/*.out >&2
  skip "the daemons do not come up here"
fi
"$@"
