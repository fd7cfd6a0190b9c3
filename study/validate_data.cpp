#include "study/validate_data.hpp"

#include <fmt/format.h>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/spec/data_dir.hpp"
#include "study/validate_words.hpp"

namespace wt::study {

Result<ValidateData> ValidateData::load(const std::string& directory) {
  auto impl = std::make_shared<Impl>();
  Diagnostics errors;
  const auto read = [&](const char* name, const char* list, YAML::Node& into) {
    const std::string path = directory.empty() ? find_data("data/validate", name) : directory + "/" + name + ".yaml";
    if (path.empty()) {
      errors.push_back({fmt::format("data/validate/{}.yaml", name), "not found", "set WINDTUNNEL_DATA"});
      return;
    }
    auto text = read_file(path);
    if (!text) {
      errors.insert(errors.end(), text.errors().begin(), text.errors().end());
      return;
    }
    try {
      into = YAML::Load(text.value());
      if (!into.IsMap() || !into[list].IsDefined() || !into[list].IsSequence())
        errors.push_back({path, fmt::format("has no list '{}'", list), ""});
    } catch (const YAML::Exception& e) {
      errors.push_back({fmt::format("{}:{}:{}", path, e.mark.line + 1, e.mark.column + 1), e.msg, ""});
    }
  };
  read("clusters", "gpus", impl->clusters);
  read("memory_kinds", "kinds", impl->memory_kinds);
  auto frameworks = framework_rules();
  if (frameworks.ok())
    impl->frameworks = std::move(frameworks.value());
  else
    errors.insert(errors.end(), frameworks.errors().begin(), frameworks.errors().end());
  if (!errors.empty()) return errors;
  ValidateData data;
  data.impl_ = std::move(impl);
  return data;
}

MemoryKind memory_kind_of(const Case& row, const ValidateData& data) {
  const YAML::Node& table = data.impl().memory_kinds;
  YAML::Node found;
  found.reset(table["default"]);
  for (const YAML::Node& entry : table["kinds"]) {
    const auto agrees = [&](const char* key, const std::string& field) {
      return !entry[key].IsDefined() || has(field, entry[key].Scalar());
    };
    if (agrees("where", row.where) && agrees("title", row.title) && agrees("framework", row.framework)) {
      found.reset(entry);  // an assignment would write the entry over the table's default
      break;
    }
  }
  MemoryKind kind;
  if (!found.IsDefined() || !found.IsMap()) return kind;
  kind.kind = text_of(found, "kind");
  kind.unit_gib = text_of(found, "unit") == "GB" ? 1e9 / 1073741824.0 : 1;
  return kind;
}

RunDescription description_of(const Case& row) {
  RunDescription run;
  const std::pair<const char*, const std::string*> fields[] = {{"framework", &row.framework},
                                                               {"precision", &row.precision},
                                                               {"overlap", &row.overlap},
                                                               {"model", &row.model},
                                                               {"gpu", &row.gpu},
                                                               {"schedule", &row.schedule},
                                                               {"where", &row.where},
                                                               {"attention_kernel", &row.attention_kernel},
                                                               {"notes", &row.notes}};
  for (const auto& [key, text] : fields) run.words[key] = *text;
  if (!lower(row.recompute).starts_with("unknown")) run.words["recompute"] = row.recompute;
  run.zero_stage = row.zero_stage.value_or(0);
  run.fsdp = row.fsdp.value_or(false);
  return run;
}

Case corrected(Case row, const tree::Node& frameworks, std::vector<std::string>& assumptions) {
  const tree::Entry* list = frameworks.find("corrections");
  if (!list) return row;
  for (const tree::Node& rule : list->value.items) {
    const tree::Entry* correct = rule.find("correct");
    if (!correct || !rule_holds(description_of(row), rule)) continue;
    const auto name = [&](std::string_view key, const std::string& value) {
      assumptions.push_back(fmt::format("{} corrected to {}: {}", key, value, scalar_of(rule, "source")));
    };
    for (const auto& [key, member] :
         {std::pair{"flash_attention", &Case::flash_attention}, {"recompute", &Case::recompute}}) {
      const std::string text = scalar_of(correct->value, key);
      if (text.empty() || row.*member == text) continue;
      row.*member = text;
      name(key, text);
    }
    for (const auto& [key, member] : {std::pair{"gpus", &Case::gpus},
                                      {"tp", &Case::tp},
                                      {"pp", &Case::pp},
                                      {"vpp", &Case::vpp},
                                      {"micro", &Case::micro}}) {
      const std::string text = scalar_of(correct->value, key);
      const auto value = parse_int(text);
      if (!value || row.*member == *value) continue;
      row.*member = *value;
      row.dp = row.grad_accum = std::nullopt;  // what is left of the GPUs and of the batch
      name(key, text);
    }
  }
  return row;
}

void add_model_rules(const Case& row, const tree::Node& frameworks, YAML::Node model) {
  const tree::Entry* list = frameworks.find("models");
  if (!list) return;
  for (const tree::Node& rule : list->value.items) {
    const tree::Entry* set = rule.find("set");
    if (!set || !rule_holds(description_of(row), rule)) continue;
    for (const tree::Entry& e : set->value.entries) model[e.key] = e.value.text;
  }
}

YAML::Node framework_key(const Case& row, const FrameworkDefaults& defaults) {
  const RunDescription run = description_of(row);
  YAML::Node key;
  key["words"] = row.framework;
  for (const auto& [name, text] : run.words)
    if (name != "framework" && defaults.asked.contains(name)) key[name] = text;
  if (run.fsdp) key["fsdp"] = true;
  if (run.zero_stage > 0) key["zero_stage"] = run.zero_stage;
  return key;
}

}  // namespace wt::study
