#include "import/script_args.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <memory>

#include "import/hf_trainer.hpp"
#include "import/torchtitan.hpp"

namespace wt::import {

namespace {

/// --name or -n, not a negative number.
bool is_flag(std::string_view word) {
  if (word.starts_with("--")) return word.size() > 2;
  return word.size() > 1 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[1]));
}

/// "--a_b 1 -b 2 --c.d=2 --flag" as a map; dots make sections.
std::shared_ptr<tree::Node> as_tree(const ShellCommand& c, size_t begin, const std::string& file, Draft& d) {
  const auto source = std::make_shared<const tree::Source>(tree::Source{file, "", false});
  auto root = std::make_shared<tree::Node>();
  root->kind = tree::Node::Kind::map;
  root->place = {source, c.line, 0};
  for (size_t i = begin; i < c.words.size();) {
    const ShellWord& w = c.words[i];
    ++i;
    if (!is_flag(w.text)) continue;
    const size_t equals = w.text.find('='), dash = w.text.starts_with("--") ? 2 : 1;
    std::string key = w.text.substr(dash, equals == std::string::npos ? std::string::npos : equals - dash),
                value = "true";
    std::vector<std::string> open = w.open;
    if (equals != std::string::npos) {
      value = w.text.substr(equals + 1);
    } else if (i < c.words.size() && !is_flag(c.words[i].text)) {
      value = c.words[i].text;
      open = c.words[i].open;
      ++i;
    }
    std::replace(key.begin(), key.end(), '-', '_');
    const tree::Place place{source, w.line, 0};
    if (!open.empty()) {
      d.not_carried({fmt::format("{}:{}", file, w.line), "--" + key}, value,
                    fmt::format("not known is {}: --var gives it", open[0]));
      continue;
    }
    tree::Node leaf;
    leaf.kind = tree::Node::Kind::scalar;
    leaf.text = value;
    leaf.place = place;
    tree::Node* at = root.get();
    constexpr int kMostParts = 8;
    int parts = 0;
    for (size_t dot = key.find('.'); dot != key.npos && ++parts < kMostParts; dot = key.find('.')) {
      const std::string head = key.substr(0, dot);
      key = key.substr(dot + 1);
      if (!at->find(head) || !at->find(head)->value.is_map()) {
        tree::Node section;
        section.kind = tree::Node::Kind::map;
        section.place = place;
        at->set(head, std::move(section), place);
      }
      at = &at->find(head)->value;
    }
    at->set(key, std::move(leaf), place);
  }
  return root;
}

}  // namespace

void read_script_arguments(const ShellCommand& c, const Launch& launch, const std::string& file, Draft& d) {
  const auto root = as_tree(c, launch.arguments, file, d);
  d.later([root] {});  // what resolves later points into it
  Keys keys(*root, "", d);
  if (keys.has("per_device_train_batch_size") ||
      (keys.has("model_name_or_path") && (keys.has("bf16") || keys.has("fp16") || keys.has("deepspeed")))) {
    d.file(file, "launch line with Hugging Face training arguments", "transformers TrainingArguments");
    read_training_arguments(keys);
    need_hub_model(keys, "model_name_or_path");
    for (const char* key : {"model_max_length", "max_seq_length", "max_length", "block_size", "cutoff_len"})
      if (keys.has(key)) keys.take_integer(key, "training.seq_len");
    keys.finish("TrainingArguments");
    return;
  }
  if (keys.has("job") || (keys.has("training") && keys.has("parallelism"))) {
    d.file(file, "launch line of torchtitan", std::string(kTorchtitanVersion));
    if (auto job = keys.section("job"); job && job->text("config_file"))
      d.note(fmt::format("{}:{}: --job.config_file {}: give that file too", file, c.line, *job->text("config_file")));
    read_torchtitan_sections(keys, false);
    return;
  }
  d.file(file, fmt::format("launch line of {}", launch.program.empty() ? "an unknown program" : launch.program), "");
  for (const tree::Entry& e : root->entries)
    d.give_program(e.key, written(e.value), origin_of(e.place, (e.key.size() == 1 ? "-" : "--") + e.key));
  d.later([&d, note = fmt::format(
                   "{}:{}: model, strategy and batch are in the code of {}: give them with --model and --set", file,
                   c.line, launch.program.empty() ? "the program" : launch.program)] {
    if (!d.has("strategy.data_parallel")) d.note(note);
  });
}

}  // namespace wt::import
