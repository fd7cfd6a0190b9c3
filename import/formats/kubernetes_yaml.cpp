// A Kubernetes PyTorchJob: the launch line of its container, replicas and devices. What the program does with its own
// arguments is in its code.
#include <fmt/format.h>

#include "core/base/text.hpp"
#include "import/format.hpp"
#include "import/keys.hpp"
#include "import/launch.hpp"
#include "import/script_args.hpp"
#include "import/shell_expand.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) { return f.has("apiVersion") && f.has("kind") && f.has("spec") ? 8 : 0; }

const tree::Node* at(const tree::Node* n, std::initializer_list<std::string_view> path) {
  for (std::string_view key : path) {
    if (!n) return nullptr;
    if (n->kind == tree::Node::Kind::list) n = n->items.empty() ? nullptr : &n->items[0];
    const tree::Entry* e = n && n->is_map() ? n->find(key) : nullptr;
    n = e ? &e->value : nullptr;
  }
  return n;
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "Kubernetes job", "");
  const tree::Node* spec = at(f.tree, {"spec", "pytorchReplicaSpecs"});
  if (!spec) {
    const tree::Entry* kind = f.tree->find("kind");
    return d.error(origin_of(kind->place, "kind"),
                   fmt::format("'{}' is not a training that is known", written(kind->value)), "a PyTorchJob");
  }
  ShellScope scope;
  for (const auto& [name, value] : d.options().vars) scope[name] = {{{value, 0, {}}}, false};
  const tree::Node* command = at(spec, {"Worker", "template", "spec", "containers", "command"});
  if (!command || command->kind != tree::Node::Kind::list)
    return d.error({f.name, "spec"}, "has no command of a Worker's container", "");
  ShellCommand line;
  line.line = command->place.line;
  for (const tree::Node* list : {command, at(spec, {"Worker", "template", "spec", "containers", "args"})})
    if (list)
      for (const tree::Node& item : list->items) {
        ShellWord w = expand_shell_text(written(item), item.place.line, scope);
        w.line = item.place.line;
        line.words.push_back(std::move(w));
      }
  const Launch launch = read_launch(line, f.name, d);
  d.note(fmt::format("{}: containers, volumes and policies say nothing of the step", f.name));
  read_script_arguments(line, launch, f.name, d);
}

}  // namespace

extern const Format formats_kubernetes_yaml;
const Format formats_kubernetes_yaml = {"kubernetes_yaml", "Kubernetes job", "the launch line of a PyTorchJob",
                                        recognise, read};

}  // namespace wt::import
