#!/usr/bin/env bash
# The figures that need a GPU, for whoever has one: builds with CUDA, runs the conformance suite, measures products beside
# cuBLASLt alone, trains a job on every visible GPU and lays the step beside the simulator's. Writes build/gpu/*.txt.
#   bench/on_gpu.sh [JOB.yaml [CLUSTER]]    CLUSTER: a built-in name (windtunnel clusters) or a file, e.g. dgx-h100
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
job=${1:-examples/tiny-llama.yaml} cluster=${2:-} out=build/gpu
command -v nvidia-smi >/dev/null && nvidia-smi -L || { echo "skipped: no GPU"; exit 77; }
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit --format=csv | tee "$out/device.txt"

CUDACXX=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)} cmake --preset cuda -DWT_BENCH=ON >/dev/null
cmake --build build/cuda --target windtunnel_cuda

echo "== conformance"
ctest --test-dir build/cuda -R '^exec/(kernels:.*[Cc]uda|nccl:)' --output-on-failure | tee "$out/conformance.txt" | tail -3

echo "== products: at least 90 % of cuBLASLt is asked for"
build/cuda/bench/wt_bench_cuda_products | tee "$out/products.txt"

echo "== a step: within 10 % of the simulator is asked for"
words=("$job")
[ -z "$cluster" ] || words+=(--cluster "$cluster")
build/cuda/windtunnel run "${words[@]}" --device cuda --warmup 5 --steps 20 --trace "$out/measured.wttrace" | tee "$out/run.txt"
build/cuda/windtunnel simulate "${words[@]}" --trace "$out/predicted.wttrace" >"$out/simulate.txt" || [ $? = 3 ]
build/cuda/windtunnel diff "$out/predicted.wttrace" "$out/measured.wttrace" | tee "$out/diff.txt"
