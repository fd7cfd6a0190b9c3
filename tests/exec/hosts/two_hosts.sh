#!/usr/bin/env bash
# Two hosts on one machine: network namespaces joined by a veth pair whose ends send no faster than RATE (tc tbf). Runs
# `mpirun` with one rank on each, on a core of its own, and the words behind -- as its program. Needs root, iproute2 and
# Open MPI; where namespaces may not be made it says so and exits 77. Takes everything down again.
#   two_hosts.sh RATE -- PROGRAM [WORDS...]      RATE as tc writes it: 1gbit, 200mbit
set -euo pipefail

if [ "${1:-}" = --agent ]; then # mpirun calls: --agent HOST COMMAND...; the first host is where it runs itself
  shift 2
  exec ip netns exec wt-host-b unshare --uts sh -c 'hostname wt-host-b; exec taskset -c "$WT_CORE_B" sh -c "$1"' sh "$*"
fi
[ $# -ge 3 ] && [ "$2" = -- ] || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }
rate=$1
shift 2

skip() {
  echo "skipped: $1" >&2
  exit 77
}
for tool in ip tc mpirun unshare taskset; do command -v $tool >/dev/null || skip "no $tool here"; done
down() {
  ip netns del wt-host-a 2>/dev/null || true
  ip netns del wt-host-b 2>/dev/null || true
}
ip netns list 2>/dev/null | grep -q '^wt-host-' && skip "namespaces wt-host-* are in use"
ip netns add wt-host-a 2>/dev/null || skip "network namespaces may not be made here"
trap down EXIT
ip netns add wt-host-b
ip -n wt-host-a link add wt-a type veth peer name wt-b netns wt-host-b 2>/dev/null || skip "no veth pairs here"
# A bucket of one segment of 64 KiB: a smaller one cuts it into packets, whose timers and receivers take the core that the rank
# computes on; a larger one lets whoever paused send faster than the rate.
for end in a b; do
  ip -n wt-host-$end addr add 10.137.0.$([ $end = a ] && echo 1 || echo 2)/24 dev wt-$end
  ip -n wt-host-$end link set lo up
  ip -n wt-host-$end link set wt-$end up
  ip netns exec wt-host-$end tc qdisc add dev wt-$end root tbf rate "$rate" burst 68kb limit 64mb 2>/dev/null ||
    skip "no token bucket (tc tbf) here"
done

# A connection that was idle between two steps must not find its rate anew.
for end in a b; do
  ip netns exec wt-host-$end sysctl -qw net.ipv4.tcp_slow_start_after_idle=0 2>/dev/null || true
done

cores=$(taskset -pc $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); ++i) print i }')
core_a=$(echo "$cores" | head -1)
WT_CORE_B=$(echo "$cores" | tail -1)
export WT_CORE_B OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
self=$(readlink -f "$0")
# Above its eager limit Open MPI asks the receiver first. Where both ends send, as in every reduction, the answer of one waits in
# the connection behind its own data, and the two directions go one after the other: 220 or 270 ms a step in place of 170.
whole="--mca btl_tcp_eager_limit 33554432 --mca btl_tcp_rndv_eager_limit 33554432"
ip netns exec wt-host-a unshare --uts sh -c 'hostname wt-host-a; core=$1; shift; exec taskset -c $core "$@"' sh "$core_a" \
  mpirun --host 10.137.0.1:1,10.137.0.2:1 -np 2 --bind-to none \
  --mca plm_rsh_agent "$self --agent" --mca btl tcp,self --mca pml ob1 $whole \
  --mca btl_tcp_if_include 10.137.0.0/24 --mca oob_tcp_if_include 10.137.0.0/24 \
  ${WINDTUNNEL_DATA:+-x WINDTUNNEL_DATA} "$@"
