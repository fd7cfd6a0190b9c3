#!/usr/bin/env bash
# Inside one_machine.sh: srun starts two ranks of one job, and a step without PMIx, whose tasks do not know of each other, is
# refused in place of being run twice.
#   two_ranks.sh PROGRAM JOB
set -euo pipefail
words=(run "$2" --set model.layers=1 --steps 2 --warmup 1)
said=$(srun -n 2 "$1" "${words[@]}")
grep '2 ranks as processes' <<<"$said"
grep '^median' <<<"$said"
code=0
said=$(srun --mpi=none -n 2 "$1" "${words[@]}" 2>&1) || code=$?
[ $code = 2 ] && grep -q 'srun --mpi=pmix' <<<"$said" || { echo "without PMIx it ended with $code: $said"; exit 1; }
