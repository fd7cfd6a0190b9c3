// YAML whose keys are Megatron's flags, under MODEL_ARGS: Megatron-LM's functional tests and the MoE model zoo. ${TP} and the
// like are variables of the script that starts it. Fields without dashes (Primus) are read as well.
#include <fmt/format.h>

#include <algorithm>

#include "import/format.hpp"
#include "import/keys.hpp"
#include "import/megatron.hpp"
#include "import/shell_expand.hpp"

namespace wt::import {

namespace {

const tree::Node* arguments_of(const Foreign& f) {
  if (!f.tree || !f.tree->is_map()) return nullptr;
  if (const tree::Entry* e = f.tree->find("MODEL_ARGS"); e && e->value.is_map()) return &e->value;
  int flags = 0;
  for (const tree::Entry& e : f.tree->entries) flags += e.key.starts_with("--") && megatron_flag(e.key);
  return flags >= 3 ? f.tree : nullptr;
}

int recognise(const Foreign& f) { return f.syntax == Foreign::Syntax::yaml && arguments_of(f) ? 8 : 0; }

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "YAML of Megatron flags", std::string(kMegatronVersion));
  ShellScope scope;
  for (const auto& [name, value] : d.options().vars) scope[name] = {{{value, 0, {}}}, false};
  MegatronArgs args(d);
  const tree::Node* list = arguments_of(f);
  if (!list) return d.error({f.name, ""}, "has no MODEL_ARGS", "a map of flags");
  for (const tree::Entry& e : list->entries) {
    const Origin from = origin_of(e.place, e.key);
    if (e.value.kind == tree::Node::Kind::null) {
      args.flag(e.key, "true", from, {});
      continue;
    }
    ShellWord w = expand_shell_text(written(e.value), e.place.line, scope);
    args.flag(e.key.starts_with("--") ? e.key : "--" + e.key, w.text, from, w.open);
  }
  if (list != f.tree)
    for (const tree::Entry& e : f.tree->entries)
      if (&e.value != list) d.ignore(origin_of(e.place, e.key), written(e.value), "how the test is run, not what");
  read_megatron(args);
}

}  // namespace

extern const Format formats_megatron_yaml;
const Format formats_megatron_yaml = {"megatron_yaml", "YAML of Megatron flags",
                                      "MODEL_ARGS of Megatron-LM's tests and of the MoE model zoo", recognise, read};

}  // namespace wt::import
