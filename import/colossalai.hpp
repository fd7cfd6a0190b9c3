// Colossal-AI's booster plugins: what the arguments of their constructors mean.
// Not the reader of Python (python_calls.hpp) and not the format (formats/colossalai_python.cpp).
// Facts: hpcaitech/ColossalAI 4f9953be colossalai/booster/plugin/*.py, zero/low_level/low_level_optim.py, zero/gemini.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "import/draft.hpp"
#include "import/python_calls.hpp"

namespace wt::import {

inline constexpr std::string_view kColossalVersion = "ColossalAI 4f9953be (2025)";
inline constexpr std::string_view kColossalPlugins[] = {"TorchDDPPlugin",       "TorchFSDPPlugin",
                                                        "LowLevelZeroPlugin",   "GeminiPlugin",
                                                        "HybridParallelPlugin", "MoeHybridParallelPlugin"};

/// The arguments of one call, each asked for by name; what nobody asked for is reported when the call is left.
class PluginArguments {
 public:
  PluginArguments(const PythonCall& call, std::string file, const PythonNames& names, Draft& draft)
      : call_(call), file_(std::move(file)), names_(names), draft_(draft) {}

  /// The value; nothing where the argument is absent, None, or what only the program knows (then it is asked for).
  std::optional<std::string> text(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::optional<int64_t> integer(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  bool has(std::string_view key) const { return call_.find(key) != nullptr; }
  std::string said(std::string_view key) const;
  Origin at(std::string_view key) const;

  /// `to` = `value`: taken where the call says `key`, a default of Colossal-AI where it does not.
  void put(std::string_view key, std::string_view to, std::string value, std::string why = "");
  void not_carried_if_on(std::string_view key, std::string_view why);
  void ignore_all(std::initializer_list<std::string_view> keys, std::string_view why);
  void finish();

  const std::string& plugin() const { return call_.name; }
  Draft& draft() { return draft_; }

 private:
  const PythonCall& call_;
  std::string file_;
  const PythonNames& names_;
  Draft& draft_;
  std::set<std::string, std::less<>> known_;
};

/// The batch of a data-parallel rank, as prepare_dataloader has it; 0: not known.
struct LoaderBatch {
  int64_t size = 0;
  Origin from;
  std::string written;
};
/// Takes what the plugin says.
void read_plugin(PluginArguments&, const LoaderBatch&);

}  // namespace wt::import
