#include "import/export.hpp"

#include <fmt/format.h>

#include <map>
#include <memory>

#include "core/spec/read.hpp"
#include "core/spec/tree.hpp"
#include "import/import.hpp"

namespace wt::import {

namespace {

using Flat = std::map<std::string, std::string>;

void flatten(const tree::Node& node, const std::string& path, Flat& out) {
  for (const tree::Entry& e : node.entries) {
    const std::string key = fmt::format("{}.{}", path, e.key);
    if (e.value.is_map())
      flatten(e.value, key, out);
    else if (e.value.is_scalar())
      out[key] = e.value.text;
  }
}

Flat flat(const std::string& yaml, const std::string& path) {
  Flat out;
  const auto tree = tree::parse_yaml(yaml, std::make_shared<const tree::Source>());
  WT_CHECK(tree.ok(), "{}", to_text(tree.errors()));
  flatten(tree.value(), path, out);
  return out;
}

Flat keys_of(const JobSpec& j) {
  Flat out = flat(print_model(j.model), "model");
  out.merge(flat(print_strategy(j.strategy), "strategy"));
  out.merge(flat(print_training(j.training), "training"));
  for (const char* name : {"model.name", "model.source"}) out.erase(name);
  return out;
}

Options options_of(const JobSpec& job, const Exporter& exporter, const std::vector<std::string>& beside) {
  Options o;
  o.cluster = "dgx-h100";  // only counts of ranks reach what is compared
  o.gpus = job.cluster.ranks();
  o.set = beside;
  o.set.push_back(fmt::format("cluster.node.devices={}", job.cluster.node.devices));
  if (!exporter.carries_model)
    for (const auto& [key, value] : flat(print_model(job.model), "model"))
      if (key != "model.name" && key != "model.source") o.set.push_back(fmt::format("{}={}", key, value));
  return o;
}

}  // namespace

const Exporter* find_exporter(std::string_view name) {
  for (const Exporter* e : all_exporters())
    if (e->name == name) return e;
  return nullptr;
}

Result<Exported> export_job(const JobSpec& job, const Exporter& exporter) {
  Written written = exporter.write(job);
  const Imported back =
      import_files({{std::string(exporter.file_name), written.text}}, options_of(job, exporter, written.beside));
  if (!back.job) {
    Diagnostics errors = back.errors;
    for (const Line* l : back.report.of(Fate::missing)) errors.push_back({l->to, "cannot be written", l->why});
    return errors;
  }
  Exported out{std::move(written.text), std::move(written.beside), {}, *back.job};
  const Flat now = keys_of(*back.job);
  Flat wanted = keys_of(job);
  if (wanted["strategy.data"] != now.at("strategy.data"))
    wanted["strategy.data"] = now.at("strategy.data");  // follows from the world
  for (const auto& [key, value] : wanted) {
    const auto i = now.find(key);
    const std::string got = i == now.end() ? "(nothing)" : i->second;
    if (got != value) out.not_carried.push_back(fmt::format("{}: {}, reads back as {}", key, value, got));
  }
  for (const auto& [key, value] : now)
    if (!wanted.contains(key)) out.not_carried.push_back(fmt::format("{}: (nothing), reads back as {}", key, value));
  return out;
}

}  // namespace wt::import
