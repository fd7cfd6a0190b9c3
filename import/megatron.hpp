// Megatron-LM's arguments, wherever they stand: a command line, a YAML of flags, the dump in a log, NeMo's model section.
// They are fields of its argparse namespace (tensor_model_parallel_size) with the place and spelling of each.
// Facts: NVIDIA/Megatron-LM d98e8a64dd (2026-08-22) megatron/training/arguments.py, core/transformer/transformer_config.py;
// flags by name, also old ones: data/frameworks/megatron_flags.tsv.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "import/draft.hpp"
#include "import/shell.hpp"

namespace wt::import {

inline constexpr std::string_view kMegatronVersion = "Megatron-LM d98e8a64 (2026-08-22)";

struct MegatronFlag {
  std::string field, sets, fallback,
      last;  // sets: value, on, off; last: "current", or the date of the last version with it
};
/// "--micro-batch-size" -> its row; null for a flag that Megatron-LM never had.
const MegatronFlag* megatron_flag(std::string_view flag);
std::vector<std::string_view> megatron_flags();

class MegatronArgs {
 public:
  explicit MegatronArgs(Draft& draft) : draft_(draft) {}

  /// The last one wins, as in argparse; "None" is as good as absent.
  void set(const std::string& field, std::string value, Origin from, std::vector<std::string> open = {});
  /// As set(), where a file says it in other words: `optim.name: distributed_fused_adam` is use_distributed_optimizer.
  void set_as(const std::string& field, std::string value, Origin from, std::string written);
  /// Words of a command line from `begin`. What is open (a variable that nobody gave) is a fault where a plan needs it.
  void command_line(const std::vector<ShellWord>& words, size_t begin, const std::string& file);
  /// One flag with its values, as in a YAML of flags; `value` "" for a bare one.
  void flag(const std::string& flag, const std::string& value, const Origin& from,
            const std::vector<std::string>& open);

  bool has(const std::string& field) const { return fields_.contains(field); }
  size_t size() const { return fields_.size(); }
  std::optional<std::string> text(const std::string& field);
  std::optional<int64_t> integer(const std::string& field);
  std::optional<double> number(const std::string& field);
  /// `fallback` where the field is absent.
  bool on(const std::string& field, bool fallback = false);
  Origin at(const std::string& field) const;
  std::string said(const std::string& field) const;
  void used(const std::string& field) { used_[field] = true; }

  bool take_integer(const std::string& field, std::string_view to, std::string why = "");
  void error(const std::string& field, std::string what, std::string hint);
  /// Everything that nobody asked for, by what the table says of it.
  void report_rest();

  /// A log or a namespace has every field: what is off is not worth a line.
  bool complete = false;

  Draft& draft() { return draft_; }

 private:
  struct Field {
    std::string value;
    Origin from;
    std::vector<std::string> open;
    std::string written;  // where it is not `value`
  };
  const Field* known(const std::string& field);

  Draft& draft_;
  std::map<std::string, Field> fields_;
  std::map<std::string, bool> used_;
};

/// Model, strategy and training of the arguments; defaults of Megatron-LM where a field is absent.
void read_megatron(MegatronArgs& args);
void read_megatron_model(MegatronArgs& args);  // its part
void read_megatron_experts(MegatronArgs& args);

/// "([0]*3+[1]*58)" and "[1,0,1]": the list; nothing where it is neither.
std::optional<std::vector<int64_t>> python_list(std::string_view text);

}  // namespace wt::import
