#include "import/hf_adapters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace wt::import {

std::string adapter_target(std::string_view module) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"q_proj", "q"},          {"k_proj", "k"},      {"v_proj", "v"},         {"o_proj", "proj"},
      {"gate_proj", "gate"},    {"up_proj", "up"},    {"down_proj", "fc2"},    {"query_key_value", "qkv"},
      {"qkv_proj", "qkv"},      {"W_pack", "qkv"},    {"c_attn", "qkv"},       {"linear_qkv", "qkv"},
      {"dense", "proj"},        {"out_proj", "proj"}, {"linear_proj", "proj"}, {"gate_up_proj", "fc1"},
      {"dense_h_to_4h", "fc1"}, {"c_fc", "fc1"},      {"fc1", "fc1"},          {"linear_fc1", "fc1"},
      {"dense_4h_to_h", "fc2"}, {"fc2", "fc2"},       {"linear_fc2", "fc2"}};
  for (const auto& [name, target] : kNames)
    if (module == name) return std::string(target);
  return "";
}

std::vector<std::string> words_of(Keys& k, std::string_view key) {
  std::vector<std::string> out;
  const tree::Entry* e = k.find(key);
  if (e == nullptr) return out;
  if (e->value.kind == tree::Node::Kind::list) {
    for (const tree::Node& item : e->value.items)
      if (item.is_scalar()) out.push_back(item.text);
    return out;
  }
  std::string word;
  for (const char c : e->value.text + ",") {
    if (c == ',') {
      if (!word.empty()) out.push_back(std::exchange(word, ""));
    } else if (c != ' ') {
      word += c;
    }
  }
  return out;
}

void take_adapter_targets(Keys& k, std::string_view key, const std::vector<std::string>& modules) {
  Draft& d = k.draft();
  std::vector<std::string> targets;
  for (const std::string& module : modules) {
    const std::string target = module == "all" || module == "all-linear" ? "all" : adapter_target(module);
    if (target.empty())
      d.error(k.at(key), fmt::format("'{}' is no product of a layer that the plan has", module),
              "such as q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or all");
    else if (std::find(targets.begin(), targets.end(), target) == targets.end())
      targets.push_back(target);
  }
  if (targets.empty()) return;
  d.take(k.at(key), k.said(key), "training.lora.targets", fmt::format("[{}]", fmt::join(targets, ", ")));
}

void take_liger_loss(Draft& d, const Origin& from, std::string_view written) {
  d.later([&d, from, written = std::string(written)] {
    const auto hidden = d.model_size("hidden"), vocab = d.model_size("vocab");
    const auto micro = d.number("training.micro_batch"), length = d.number("training.seq_len");
    if (!hidden || !vocab || !micro || !length) {
      d.not_carried(from, written,
                    "the pieces of the fused loss follow from the model's shape, which is not known here");
      return;
    }
    const auto ratio = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const int64_t rows = ratio(*micro * *length, std::max<int64_t>(1, ratio(*vocab, *hidden)));
    d.take(from, written, "training.loss_chunk", static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))),
           "Liger's fused linear cross entropy: rows whose logits are there at a time");
  });
}

}  // namespace wt::import
