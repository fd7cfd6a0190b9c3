#!/usr/bin/env bash
# run.sh BUILD: installs BUILD into a new folder and uses it with find_package, uses the sources as a subproject, makes
# the Debian packages, and runs the program out of its package away from the sources.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CMAKE_GENERATOR=Ninja
quiet() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; echo "failed: $*"; exit 1; }; }
prints() {  # prints EXPECTED PROGRAM
  local got
  got=$("$2")
  [ "$got" = "$1" ] || { echo "consumer printed '$got', not '$1'"; exit 1; }
}

quiet cmake --install "$build" --prefix "$work/prefix"
quiet cmake -S "$root/tests/package" -B "$work/found" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release
quiet cmake --build "$work/found"
prints "1.50 ms" "$work/found/consumer"
echo "find_package: ok"

quiet cmake -S "$root/tests/package" -B "$work/sub" -DWT_SUBPROJECT="$root" -DCMAKE_BUILD_TYPE=Release \
  -DWT_GUI=OFF -DWT_MPI=OFF -DWT_CUDA=OFF
quiet cmake --build "$work/sub" --target consumer
prints "1.50 ms" "$work/sub/consumer"
echo "subproject: ok"

(cd "$work" && quiet cpack --config "$build/CPackConfig.cmake" -B "$work/packages")
for deb in "$work"/packages/*.deb; do
  echo "$(basename "$deb"): $(dpkg-deb -f "$deb" Depends)"
  dpkg-deb -x "$deb" "$work/root"
done
cmp "$root/models/llama3-70b.yaml" "$work/root/usr/share/windtunnel/models/llama3-70b.yaml"
for folder in data/kernels cluster_specs/devices examples; do
  [ -d "$work/root/usr/share/windtunnel/$folder" ] || { echo "$folder is missing from the package"; exit 1; }
done
(cd / && quiet "$work/root/usr/bin/windtunnel" --version)
echo "packages: ok"
