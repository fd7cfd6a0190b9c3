#!/usr/bin/env python3
"""check_layers.py, check_source.py and check_docs.py must fail on planted faults, and on nothing else."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
GOOD = "// What it is.\n#pragma once\n"

SYSTEMS = "## By system\n\n| system | what | example | plan | training | reproduces |\n| --- | --- | --- | --- | --- | --- |\n"
ROW = "| ZeRO | all | {} | {} | {} | {} |\n"
KEYS = "## By key\n\n| key | what | where |\n| --- | --- | --- |\n| `a` | b | `strategies/none.cpp` |\n"
REPORTED = "# Cases\n\n| case | what | grade | test |\n| --- | --- | --- | --- |\n| P01 | x | A | `study/none_test` |\n"

DESCRIBE = """template <class V>
void describe(V& v, LoraSpec& l) {
  v.integer("rank", l.rank, Range{0, 1 << 20}, kOptional);
}
template <class V>
void describe(V& v, TrainingSpec& t) {
  v.quantity(Quantity::time, "pause", t.pause, v.has("lora") ? kOptional : kRequired);
  v.section("lora", t.lora);
}
"""
SPECS = """struct LoraSpec {
  int rank = 0;
};
struct TrainingSpec {
  double pause = 0;  // not the lora
  std::optional<LoraSpec> lora;
};
"""


def keys_tree(*sections):
    """A project whose docs/keys.md has these sections, each a heading and its keys."""
    table = "".join(f"## {heading}\n\n| key | what | unit | default |\n| --- | --- | --- | --- |\n" +
                    "".join(f"| `{key}` | a | b | c |\n" for key in keys) + "\n" for heading, *keys in sections)
    return {"core/spec/describe.hpp": GOOD + DESCRIBE, "core/spec/specs.hpp": GOOD + SPECS,
            "docs/keys.md": "# Keys\n" + table}


TRAINING, LORA = ("training", "pause", "lora"), ("training.lora", "rank")

# script, file or "" where the content is a map of files, content, the words that must be printed (None: the script must be content)
CASES = [
    ("check_layers.py", "core/base/a.hpp", GOOD + '#include "core/plan/plan.hpp"\n', "core/base may not use core/plan"),
    ("check_layers.py", "sim/cost/a.cpp", '#include "exec/execute.hpp"\n', "sim may not use exec"),
    ("check_layers.py", "exec/a.cu", '#  include "sim/simulate.hpp"\n', "exec may not use sim"),
    ("check_layers.py", "core/plan/a.hpp", GOOD + '#include "core/base/units.hpp"\n', None),
    ("check_layers.py", "study/a.cpp", '// #include "apps/x.hpp"\n#include <vector>\n', None),
    ("check_source.py", "core/base/a.hpp", GOOD + "inline void f() { std::exit(1); }\n", "a.hpp:3: only apps/ may end"),
    ("check_source.py", "sim/a.cpp", "// A.\nvoid f() { abort(); }\n", "only apps/ may end"),
    ("check_source.py", "sim/a.cpp", '// It may exit(1).\nauto s = "exit(1)";\nvoid on_exit_(int);\n', None),
    ("check_source.py", "apps/a.cpp", "// A.\nvoid f() { std::exit(1); }\n", None),
    ("check_source.py", "core/base/check.cpp", "// A.\nvoid f() { std::abort(); }\n", None),
    ("check_source.py", "sim/a.cpp", "// A.\n// TO" "DO: later\n", "needs the number of its issue"),
    ("check_source.py", "sim/a.cpp", "// A.\n// TO" "DO(#12): later\n", None),
    ("check_source.py", "sim/a.hpp", "// A.\n", "#pragma once is missing"),
    ("check_source.py", "sim/a.cpp", "int x;\n", "open with a comment"),
    ("check_docs.py", "docs/strategies.md", SYSTEMS + ROW.format("`job`", "none: x", "none: x", "none: x"), "no example 'job'"),
    ("check_docs.py", "docs/strategies.md", SYSTEMS + ROW.format("", "none: x", "none: x", "none: x"), "ZeRO: no example"),
    ("check_docs.py", "docs/strategies.md", SYSTEMS + ROW.format("`job`", "`a_test`", "none: x", "none: x"), "no test 'a_test'"),
    ("check_docs.py", "docs/strategies.md", SYSTEMS + ROW.format("`job`", "none: x", "", "none: x"), "no training test"),
    ("check_docs.py", "docs/strategies.md", SYSTEMS + ROW.format("`job`", "none: x", "none: x", "P7"), "no case P7"),
    ("check_docs.py", "docs/strategies.md", SYSTEMS + ROW.format("`job`", "none: x", "none: x", ""), "reproduces nothing"),
    ("check_docs.py", "docs/strategies.md", KEYS, "no file 'strategies/none.cpp'"),
    ("check_docs.py", "docs/user_cases.md", REPORTED, "no test 'study/none_test'"),
    ("check_docs.py", "docs/strategies.md", SYSTEMS, None),
    ("check_docs.py", "", keys_tree(TRAINING, LORA, ("A job", "file")), None),
    ("check_docs.py", "", keys_tree(TRAINING, ("training.lora",)), "no row of 'training.lora.rank'"),
    ("check_docs.py", "", keys_tree(("training", "lora"), LORA), "no row of 'training.pause'"),
    ("check_docs.py", "", keys_tree(TRAINING, (*LORA, "pause")), "keys.md:14: core/spec/describe.hpp has no key"),
    ("check_docs.py", "", {**keys_tree(TRAINING), "core/spec/specs.hpp": GOOD}, "keys of LoraSpec"),
    ("check_docs.py", "", keys_tree((*TRAINING, "lora"), LORA), "a second row of 'training.lora'"),
]

bad = 0
for script, name, content, words in CASES:
    with tempfile.TemporaryDirectory() as folder:
        for path, text in (content if isinstance(content, dict) else {name: content}).items():
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        run = subprocess.run([sys.executable, ROOT / "cmake" / script, folder], capture_output=True, text=True)
        right = (run.returncode == 0 and run.stdout == "") if words is None else (
            run.returncode == 1 and words in run.stdout)
        if not right:
            print(f"{script} on {name}:\n{content}\nprinted: {run.stdout}{run.stderr}wanted: {words or 'nothing'}\n")
            bad += 1
print(f"{len(CASES) - bad} of {len(CASES)} planted cases are right")
sys.exit(bad > 0)
