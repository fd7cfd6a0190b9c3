#!/usr/bin/env python3
"""Derives data/nccl/execution.csv from data/measured/nccl.csv: measured time over the time of the two terms, by mechanism
(algorithm, protocol, generation, nodes) against load = transfer term / latency term. No set-up has a factor of its own:
a value is the median over the set-ups that share the mechanism, smoothed over neighbouring loads.

  run   build/release/tests/test_sim must be built;  python3 data/nccl/derive_execution.py
"""
import collections
import csv
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST, LAST = -10, 12
GENERATION = {"v100": "volta", "a100": "ampere", "h100": "hopper", "h200": "hopper", "h20-": "hopper", "b200": "blackwell",
              "b300": "blackwell", "gb20": "blackwell", "mi30": "cdna", "mi32": "cdna", "mi35": "cdna"}
# A mechanism that nobody published for a generation is that of its neighbour.
NEIGHBOURS = {"volta": ["ampere", "hopper", "blackwell"], "ampere": ["hopper", "blackwell"],
              "hopper": ["ampere", "blackwell"], "blackwell": ["hopper", "ampere"], "cdna": ["hopper", "ampere", "blackwell"]}
HEADER = """# What running adds to the two terms of a collective: measured time over latency + bytes / bandwidth, by
# log2(transfer term / latency term). Medians over the set-ups of data/measured/nccl.csv that share the mechanism,
# smoothed; the number of set-ups is named. Made by data/nccl/derive_execution.py; do not edit.
algorithm,protocol,generation,span,log2_load,ratio,source
"""


def points():
    """The model without execution curves, evaluated at every published point."""
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        for folder in ("data", "cluster_specs", "models"):
            if (ROOT / folder).is_dir():
                shutil.copytree(ROOT / folder, root / folder)
        (root / "data/nccl/execution.csv").write_text(HEADER)
        out = root / "points.csv"
        subprocess.run([ROOT / "build/release/tests/test_sim", "--gtest_filter=CollectiveMeasured.*"], check=True,
                       stdout=subprocess.DEVNULL,
                       env={**os.environ, "WINDTUNNEL_DATA": temporary, "WT_COLLECTIVE_POINTS": str(out)})
        return list(csv.DictReader(out.open()))


def curves(rows):
    found = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    floor = collections.defaultdict(lambda: math.inf)
    for row in rows:
        floor[row["series"], row["op"]] = min(floor[row["series"], row["op"]], float(row["measured"]))
    for row in rows:
        generation = GENERATION.get(row["device"][:4])
        latency, estimate = float(row["latency"]), float(row["estimate"])
        if not generation or row["op"] == "message" or row["note"] == "odd" or latency <= 0:
            continue
        if row["note"] == "host" and (int(row["bytes"]) < 1 << 20
                                      or float(row["measured"]) < 1.5 * floor[row["series"], row["op"]]):
            continue  # the host, not the collective
        nodes = int(row["nodes"])
        if row["device"].startswith("gb200"):
            nodes = -(-nodes // 18)
        key = (row["algorithm"], row["protocol"], generation, "one" if nodes == 1 else "two" if nodes == 2 else "more")
        load = round(math.log2(max((estimate - latency) / latency, 2.0 ** FIRST)))
        found[key][min(max(load, FIRST), LAST)][row["series"], row["op"]].append(float(row["measured"]) / estimate)
    return found


def smooth(bins):
    """A value at every load from FIRST to LAST: medians, gaps by straight lines, then weights 1 2 1. Below the least load
    that was measured the value stays; above the largest what is over 1 halves with each doubling of the load, because
    the transfer term alone holds in the end."""
    known = {load: statistics.median(statistics.median(v) for v in series.values()) for load, series in bins.items()}
    loads = sorted(known)
    filled = []
    for load in range(FIRST, LAST + 1):
        below = [x for x in loads if x <= load]
        above = [x for x in loads if x >= load]
        if below and above:
            a, b = below[-1], above[0]
            filled.append(known[a] if a == b else known[a] + (known[b] - known[a]) * (load - a) / (b - a))
        else:
            last = known[(below or above)[-1 if below else 0]]
            filled.append(1 + (last - 1) * 0.5 ** (load - below[-1]) if below else last)
    n = len(filled)
    return [(filled[max(i - 1, 0)] + 2 * filled[i] + filled[min(i + 1, n - 1)]) / 4 for i in range(n)]


def main():
    found = curves(points())
    lines = []
    keys = sorted({(a, p, s) for a, p, _, s in found})
    for algorithm, protocol, span in keys:
        for generation in NEIGHBOURS:
            own = found.get((algorithm, protocol, generation, span))
            source = None
            if own and sum(len(v) for v in own.values()) >= 3:
                source = f"{len({s for v in own.values() for s in v})} set-ups"
            else:
                for other in NEIGHBOURS[generation]:
                    candidate = found.get((algorithm, protocol, other, span))
                    if candidate and sum(len(v) for v in candidate.values()) >= 3:
                        own, source = candidate, f"as {other}"
                        break
            if source:
                for load, ratio in zip(range(FIRST, LAST + 1), smooth(own)):
                    lines.append(f"{algorithm},{protocol},{generation},{span},{load},{ratio:.3f},{source}\n")
    (ROOT / "data/nccl/execution.csv").write_text(HEADER + "".join(lines))
    print(f"{len(lines)} rows")


if __name__ == "__main__":
    main()
