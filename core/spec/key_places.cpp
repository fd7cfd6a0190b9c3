#include "core/spec/key_places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace wt {

void KeyPlaces::add(const tree::Node& node, const std::string& path) {
  written_[path] = {node.place, node.is_map()};
  for (const tree::Entry& e : node.entries) add(e.value, fmt::format("{}.{}", path, e.key));
}

/// A single value in place of a section ("recompute: full") says the keys of that section.
const tree::Place* KeyPlaces::find(std::string_view key) const {
  if (const auto it = written_.find(key); it != written_.end()) return &it->second.place;
  if (key == "training.precision") return find("training.compute_dtype");  // the long way to say it
  const size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return nullptr;
  const auto above = written_.find(key.substr(0, dot));
  return above != written_.end() && !above->second.section ? &above->second.place : nullptr;
}

std::string KeyPlaces::where(std::string_view key) const {
  if (const tree::Place* place = find(key)) return tree::to_text(*place, key);
  return fmt::format("{}: default of {}", file_, key);
}

void KeyPlaces::add_fault(const std::string& key, std::vector<std::string> legal) { at_fault_[key] = std::move(legal); }

std::vector<std::vector<std::string>> KeyPlaces::corrections() const {
  constexpr size_t kMost = 12;
  size_t most = 0;
  for (const auto& [key, legal] : at_fault_) {
    if (legal.empty() || key.find('[') != std::string::npos) return {};
    most = std::max(most, legal.size());
  }
  std::vector<std::vector<std::string>> out(std::min(most, kMost));
  for (size_t i = 0; i < out.size(); ++i)
    for (const auto& [key, legal] : at_fault_) out[i].push_back(fmt::format("{}={}", key, legal[i % legal.size()]));
  return out;
}

Diagnostics KeyPlaces::placed(Diagnostics faults) const {
  constexpr std::array<std::string_view, 4> kSections = {"model", "cluster", "strategy", "training"};
  if (file_.empty()) return faults;
  for (Diagnostic& d : faults) {
    const std::string_view section = std::string_view(d.where).substr(0, d.where.find('.'));
    const bool key = std::find(kSections.begin(), kSections.end(), section) != kSections.end();
    if (key && d.where.find_first_of(" :") == std::string::npos) d.where = where(d.where);
  }
  return faults;
}

}  // namespace wt
