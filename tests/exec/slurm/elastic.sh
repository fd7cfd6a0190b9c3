#!/usr/bin/env bash
# Inside one_machine.sh: `windtunnel run --elastic --launcher srun` on two ranks, of which one is killed when there is a
# checkpoint. The supervisor must start srun again on the rank that is left, from that checkpoint, and the run must end well.
#   elastic.sh PROGRAM JOB
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" run "$2" --set model.layers=1 --elastic --launcher srun --checkpoint "$work/saved" --checkpoint-every 2 --steps 60 --timeout 20 \
  >"$work/out" 2>&1 &
run=$!
for _ in $(seq 600); do
  compgen -G "$work/saved/step-*" >/dev/null && break
  kill -0 $run 2>/dev/null || break
  sleep 0.1
done
kill -9 "$(cat "$work/saved/.ranks/0/rank-1")"
code=0
wait $run || code=$?
cat "$work/out"
[ $code = 0 ] || { echo "ended with $code"; exit 1; }
grep -q '1 of 2 ranks died; going on from step' "$work/out"
grep -q 'median' "$work/out"
