#!/usr/bin/env bash
# The link between two hosts (two_hosts.sh) goes down in the middle of a training step: the rank that waits says its own name, the op
# and who does not answer, no rank hangs, and the checkpoints from before load. mpirun itself would wait for the daemon that is cut
# off, for longer than a test may: when the ranks are gone it is ended here, and its words about them are not relied on. 77: no
# namespaces here.
#   cut_link.sh PROGRAM JOB
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
words=(run "$2" --set model.layers=1 --set strategy.tensor=2 --timeout 4 --checkpoint "$work/saved")
"$here/two_hosts.sh" 1gbit -- "$1" "${words[@]}" --checkpoint-every 2 --steps 100000 >"$work/out" 2>&1 &
run=$!
for _ in $(seq 600); do
  compgen -G "$work/saved/step-*" >/dev/null && break
  kill -0 $run 2>/dev/null || break
  sleep 0.1
done
if ! kill -0 $run 2>/dev/null; then
  code=0
  wait $run || code=$?
  cat "$work/out"
  exit "$code"
fi
in_hosts() { { ip netns pids wt-host-a; ip netns pids wt-host-b; } 2>/dev/null; }
ranks() { for pid in $(in_hosts); do [ "$(readlink /proc/"$pid"/exe)" != "$(readlink -f "$1")" ] || echo "$pid"; done; }
ip -n wt-host-b link set wt-b down
for _ in $(seq 300); do
  [ -n "$(ranks "$1")" ] || break
  sleep 0.1
done
left=$(ranks "$1")
for pid in $(in_hosts); do kill -9 "$pid" 2>/dev/null || true; done
wait $run || true
tail -n 12 "$work/out"
[ -z "$left" ] || { echo "ranks still there: $left"; exit 1; }
grep -Eq "rank [01], op '.*waited 4.0 s for rank [01]; rank [01] does not answer: stopped, dead or cut off" "$work/out"
last=$(find "$work/saved" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | tail -1)
"$1" "${words[@]}" --resume --ranks inproc --steps $((10#${last#step-} + 3)) >"$work/resumed"
grep '^median' "$work/resumed"
