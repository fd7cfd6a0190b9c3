// A Hugging Face config.json among the files: the model. Read by core/spec/hf_config.hpp.
#include <fmt/format.h>

#include "core/spec/hf_config.hpp"
#include "core/spec/read.hpp"
#include "import/format.hpp"
#include "import/keys.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  return f.syntax == Foreign::Syntax::json && f.has("model_type") && !f.has("layer_num") && !f.has("num_layers") ? 6
         : f.has("architectures") && f.has("hidden_size")                                                        ? 5
                                                                                                                 : 0;
}

void put(const tree::Node& node, const std::string& path, const std::string& where, Draft& d) {
  for (const tree::Entry& e : node.entries) {
    const std::string key = fmt::format("{}.{}", path, e.key);
    if (e.value.is_map())
      put(e.value, key, where, d);
    else if (e.value.is_scalar() && e.key != "name" && e.key != "source")
      d.take({where, "config.json"}, e.value.text, key, e.value.text);
  }
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "Hugging Face config.json", "transformers' configuration classes");
  auto model = parse_hf_config(f.text, f.name);
  if (!model) {
    d.errors().insert(d.errors().end(), model.errors().begin(), model.errors().end());
    return;
  }
  for (std::string& w : model.value().warnings) d.note(std::move(w));
  const auto tree = tree::parse_yaml(print_model(model.value().model), std::make_shared<const tree::Source>());
  if (tree) put(tree.value(), "model", f.name, d);
}

}  // namespace

extern const Format formats_hf_config;
const Format formats_hf_config = {"hf_config", "Hugging Face config.json", "the model", recognise, read};

}  // namespace wt::import
