#!/usr/bin/env python3
"""Fails when an #include points up or sideways. The table is the architecture picture."""
import pathlib
import re
import sys

MAY_USE = {
    "core/base": [],
    "core/spec": ["core/base"],
    "core/plan": ["core/base"],
    "core/lower": ["core/base", "core/spec", "core/plan"],
    "core/trace": ["core/base", "core/plan"],
    "core/report": ["core/base", "core/spec", "core/plan", "core/trace"],
    "sim": ["core/base", "core/spec", "core/plan", "core/trace"],
    "exec": ["core/base", "core/plan", "core/trace"],
    "exec/calibrate": ["core/base", "core/spec", "core/plan", "core/lower", "core/trace", "exec"],
    "import": ["core/base", "core/spec", "core/trace"],
    "study": ["core/base", "core/spec", "core/plan", "core/lower", "core/trace", "core/report", "sim", "import"],
    "gui": ["core/base", "core/spec", "core/plan", "core/lower", "core/trace", "core/report", "sim", "study"],
    "apps": ["core/base", "core/spec", "core/plan", "core/lower", "core/trace", "core/report", "sim", "exec",
             "exec/calibrate",
             "import", "study"],
}


def layer_of(path):
    for layer in sorted(MAY_USE, key=len, reverse=True):
        if path.startswith(layer + "/"):
            return layer
    return None


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    bad = 0
    for top in sorted({layer.split("/")[0] for layer in MAY_USE}):
        for file in sorted((root / top).rglob("*")):
            rel = file.relative_to(root).as_posix()
            mine = layer_of(rel)
            if file.suffix not in (".hpp", ".cpp", ".cu", ".cuh") or not mine:
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
                theirs = match and layer_of(match[1])
                if theirs and theirs != mine and theirs not in MAY_USE[mine]:
                    allowed = ", ".join(MAY_USE[mine]) or "nothing"
                    print(f"{rel}:{number}: {mine} may not use {theirs} (allowed: {allowed})")
                    bad += 1
    sys.exit(bad > 0)


main()
