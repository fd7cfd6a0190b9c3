#!/usr/bin/env python3
"""Rules of the sources that no compiler checks. Each failure prints file:line and the rule.

- no exit( or abort( outside apps/ and core/base/check.cpp: a library never ends the process
- no to-do note without the number of an issue: TODO(#12)
- a header, and a .cpp that has no header of its name, opens with a comment that says what it is
- a header has #pragma once
"""
import pathlib
import re
import sys

FOLDERS = ["core", "sim", "exec", "study", "import", "gui", "apps", "tests", "bench"]
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh"}
ENDS_PROCESS = re.compile(r"(?<![\w.>])(?<!void )(?:std::|::)?(?:_exit|exit|quick_exit|abort|terminate)\s*\(")
MAY_END_PROCESS = ("apps/", "tests/", "bench/", "core/base/check.cpp", "gui/main.cpp")
TODO = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\))")


def code_only(line):
    """The line without string literals and without a // comment (good enough for one-line rules)."""
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', line).split("//")[0]


def faults(rel, text, has_header):
    lines = text.splitlines()
    if not has_header and not rel.startswith("tests/") and not (lines and lines[0].startswith("//")):
        yield 1, "open with a comment of two to six lines: what the file is, what it is not, its invariant"
    if rel.endswith((".hpp", ".cuh")) and "#pragma once" not in lines:
        yield 1, "#pragma once is missing"
    for number, line in enumerate(lines, 1):
        if TODO.search(line):
            yield number, "a to-do note needs the number of its issue: TODO(#12)"
        if not rel.startswith(MAY_END_PROCESS) and ENDS_PROCESS.search(code_only(line)):
            yield number, "only apps/ may end the process; return a Result, or WT_CHECK for a bug of ours"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    bad = 0
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES:
                rel = file.relative_to(root).as_posix()
                has_header = file.suffix == ".cpp" and file.with_suffix(".hpp").exists()
                for number, rule in faults(rel, file.read_text(), has_header):
                    print(f"{rel}:{number}: {rule}")
                    bad += 1
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
