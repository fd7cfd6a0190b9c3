#!/usr/bin/env python3
"""What the tables of docs/ name exists. Each failure prints file:line and what is missing.

- docs/strategies.md, "By system": every row has an example (a file of examples/, of models/), tests that are files, and what
  it reproduces: rows of docs/validation.md, cases of docs/user_cases.md, or "none: why"
- docs/strategies.md, "By key": the files and the examples of the last columns
- docs/user_cases.md: the test of a case is a file, and speaks of the case by its name
- docs/keys.md: under "## model.moe" and the like a row for every key that core/spec/describe.hpp has there, and no other
"""
import pathlib
import re
import sys

TICKS = re.compile(r"`([^`]+)`")
CASE = re.compile(r"\bP\d+\b")
NAME = re.compile(r"[\w./-]+")
KEY = re.compile(r"(?:strategy|training|model|cluster)\.")  # of a job, not a name of a file


def rows_below(lines, heading):
    """(line number, cells) of the table under a heading."""
    inside = False
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            inside = line.strip("# ").strip() == heading
        elif inside and line.startswith("|") and not line.startswith("| ---"):
            cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            yield number, cells


class Tree:
    def __init__(self, root):
        self.root = root
        self.tests = [p for p in (root / "tests").rglob("*_test.cpp")] if (root / "tests").is_dir() else []
        self.validation = self.read("docs/validation.md")
        self.cases = self.read("docs/user_cases.md")

    def read(self, name):
        file = self.root / name
        return file.read_text() if file.is_file() else ""

    def example(self, name):
        return any((self.root / folder / f"{name}{end}").is_file()
                   for folder, ends in (("examples", (".yaml", ".py", ".sh", "")), ("models", (".yaml",))) for end in ends)

    def test(self, name):
        """Files that `reference/parity`, `lower_test`, `study/user_cases_test` may mean."""
        stem = name if name.endswith("_test") else name + "_test"
        return [t for t in self.tests if ("/" + t.relative_to(self.root).as_posix()).endswith(f"/{stem}.cpp")]

    def source(self, name):
        return any((self.root / folder / name).exists() for folder in ("", "core/lower", "core", "tests", "tests/core"))


def systems(tree, lines):
    for number, cells in list(rows_below(lines, "By system"))[1:]:
        if len(cells) != 6:
            yield number, f"{len(cells)} columns, not 6"
            continue
        system, _, example, plan, training, reproduces = cells
        named = [n for n in TICKS.findall(example) if NAME.fullmatch(n) and not KEY.match(n)]
        if not named:
            yield number, f"{system}: no example"
        for n in named:
            if not tree.example(n):
                yield number, f"{system}: no example '{n}'"
        for what, cell in (("plan test", plan), ("training test", training)):
            tests = [n for n in TICKS.findall(cell) if NAME.fullmatch(n) and not n.endswith(".plan")]
            if not tests and not cell.startswith("none:"):
                yield number, f"{system}: no {what} (or \"none: why\")"
            for n in tests:
                if not tree.test(n):
                    yield number, f"{system}: no test '{n}'"
        if reproduces.startswith("none:"):
            continue
        cases, groups = CASE.findall(reproduces), re.search(r"rows ([^;]*)", reproduces)
        if not cases and not groups:
            yield number, f"{system}: reproduces nothing (or \"none: why\")"
        for c in cases:
            if not re.search(rf"^\| [^|]*\b{c}\b", tree.cases, re.M):
                yield number, f"{system}: no case {c} in docs/user_cases.md"
        for group in re.sub(r"\([^)]*\)", "", groups.group(1)).split(",") if groups else []:
            if tree.validation and group.strip() and group.strip() not in tree.validation:
                yield number, f"{system}: no row of '{group.strip()}' in docs/validation.md"


def keys(tree, lines):
    for number, cells in list(rows_below(lines, "By key"))[1:]:
        for cell in cells[1:]:
            for n in TICKS.findall(cell):
                if re.fullmatch(r"[\w./-]+\.(?:cpp|hpp|csv|yaml)", n) and "/" in n and not tree.source(n):
                    yield number, f"no file '{n}'"


def user_cases(tree, lines):
    for number, cells in [r for r in rows_below(lines, lines[0].strip("# ").strip())][1:]:
        if len(cells) != 4:
            yield number, f"{len(cells)} columns, not 4"
            continue
        tests = TICKS.findall(cells[3])
        if not tests:
            yield number, f"{cells[0]}: no test"
        last, spoken = "", []
        for n in tests:
            files = tree.test(n) or tree.test(f"{last}/{n}")
            last = n.rsplit("/", 1)[0] if "/" in n else last
            if not files:
                yield number, f"{cells[0]}: no test '{n}'"
            spoken += [f.read_text() for f in files]
        for c in CASE.findall(cells[0]):
            if spoken and not any(re.search(rf"\b{c}(?:_|\b)", text) for text in spoken):
                yield number, f"no test of '{cells[3]}' speaks of {c}"


SPECS = {"model": "ModelSpec", "cluster": "ClusterSpec", "strategy": "StrategySpec", "training": "TrainingSpec"}
STRUCT = re.compile(r"^struct (\w+) \{(.*?)^\};", re.M | re.S)
DESCRIBE = re.compile(r"void describe\(V& \w+, (\w+)& \w+\) \{(.*?)^\}", re.M | re.S)
DESCRIBED = re.compile(r'\bv\.(?!has\b)\w+\(\s*(?:Quantity::\w+,\s*)?"(\w+)"')
SECTION = re.compile(rf"(?:{'|'.join(SPECS)})(?:\.\w+)*")


def described_keys(tree):
    """Paths such as training.lora.rank of all keys, through the types of the members that are sections; and the types that
    describe.hpp has, but no member of another."""
    code = re.sub(r"//.*", "", tree.read("core/spec/specs.hpp") + tree.read("core/spec/measured.hpp"))
    structs = dict(STRUCT.findall(code))
    keys = {name: DESCRIBED.findall(body) for name, body in DESCRIBE.findall(tree.read("core/spec/describe.hpp"))}
    unused = set(keys)

    def below(spec, path):
        unused.discard(spec)
        for key in keys.get(spec, ()):
            yield f"{path}.{key}"
            member = re.search(rf"(\w+)>?\s+{key}\b", structs.get(spec, ""))
            if member:
                yield from below(member.group(1), f"{path}.{key}")

    return [key for name, spec in SPECS.items() for key in below(spec, name)], sorted(unused)


def key_rows(tree, lines):
    (described, unused), seen = described_keys(tree), set()
    for heading in dict.fromkeys(line[3:].strip() for line in lines if line.startswith("## ")):
        if not SECTION.fullmatch(heading):
            continue
        for number, cells in list(rows_below(lines, heading))[1:]:
            key = f"{heading}.{(TICKS.findall(cells[0]) or [cells[0]])[0]}"
            if key not in described:
                yield number, f"core/spec/describe.hpp has no key '{key}'"
            elif key in seen:
                yield number, f"a second row of '{key}'"
            elif len(cells) != 4:
                yield number, f"{len(cells)} columns, not 4"
            seen.add(key)
    for key in described:
        if key not in seen:
            yield 1, f"no row of '{key}' (core/spec/describe.hpp)"
    for spec in unused:
        yield 1, f"keys of {spec} (core/spec/describe.hpp) are of no section"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    tree = Tree(root)
    bad = 0
    for name, rules in (("docs/strategies.md", (systems, keys)), ("docs/user_cases.md", (user_cases,)),
                        ("docs/keys.md", (key_rows,))):
        lines = tree.read(name).splitlines()
        for rule in rules if lines else ():
            for number, what in rule(tree, lines):
                print(f"{name}:{number}: {what}")
                bad += 1
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
