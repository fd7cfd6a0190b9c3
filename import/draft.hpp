// The job under construction: keys of ours with the foreign key that gave each, open questions, faults.
// Values are the text of a job file, so that a key that the specs do not have (yet) can be met and named; the strict
// reader of core/spec judges the whole at the end. Beside keys of a job it holds `run.world`, `run.nodes`,
// `run.devices` (ranks a node), `batch.accumulation`: what launch files say and a job derives.
// Invariant: a key is decided once; a second file that says something else is a fault, never a silent choice.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"
#include "import/report.hpp"

namespace wt::import {

/// What the command line gives beside the files.
struct Options {
  std::string model;                        // name or file, as in a job
  std::string cluster;                      // name or file
  int64_t nodes = 0, gpus = 0;              // 0: not given
  std::vector<std::string> set;             // "training.seq_len=4096"
  std::map<std::string, std::string> vars;  // of shell scripts and templates: TP -> 2
  std::string format;                       // force one: "deepspeed_json"
};

class Draft {
 public:
  explicit Draft(const Options& options) : options_(options) { take_options(); }

  /// `to` = `value`, as `from` says with `written`. A key that no spec has is reported as not carried.
  void take(const Origin& from, std::string_view written, std::string_view to, std::string value, std::string why = "");
  void take(const Origin& from, std::string_view written, std::string_view to, int64_t value, std::string why = "") {
    take(from, written, to, std::to_string(value), std::move(why));
  }
  /// Only if nothing has decided `to` yet.
  void fall_back(std::string_view to, std::string value, std::string why);
  void ignore(const Origin& from, std::string_view written, std::string why);
  void not_carried(const Origin& from, std::string_view written, std::string why);
  void unknown(const Origin& from, std::string_view written, std::string hint);
  void missing(std::string what, std::string how);
  void error(const Origin& from, std::string what, std::string hint);
  void note(std::string text);
  /// Whose defaults (data/validate/frameworks.yaml) hold where no file says anything: "megatron", "deepspeed".
  void framework(std::string name);
  void file(std::string name, std::string format, std::string defaults);
  /// What a launch line gives its program ("batch_size", without dashes), for a reader of that program. What no reader asks
  /// for before the world is counted is reported as not carried.
  void give_program(std::string name, std::string value, Origin from);
  std::optional<std::string> program_argument(std::string_view name);

  std::optional<std::string> value(std::string_view key) const;
  std::optional<int64_t> number(std::string_view key) const;
  bool has(std::string_view key) const { return values_.count(std::string(key)) > 0; }
  const Options& options() const { return options_; }

  /// Runs when every file has been read and before the world is counted: defaults of launchers.
  void before_world(std::function<void()> resolve) { before_world_.push_back(std::move(resolve)); }
  /// Runs after that, in the order of the calls.
  void later(std::function<void()> resolve) { later_.push_back(std::move(resolve)); }

  /// Of what has been decided so far; meant for `later`. The model of --model answers where the files do not.
  std::optional<int64_t> model_size(std::string_view key);  // "hidden", "layers", "heads", "vocab"
  std::optional<int64_t> world() const;
  std::optional<int64_t> data_ranks() const;  // world / (tensor * pipeline * context), where it divides

  /// Resolves world, batch and what is missing; the text of a job file, or "" with faults or missing things.
  std::string finish();

  const Report& report() const { return report_; }
  Report& report() { return report_; }
  const Diagnostics& errors() const { return errors_; }
  Diagnostics& errors() { return errors_; }

 private:
  struct Decided {
    std::string value;
    Origin from;
    bool fallback = false;
  };
  const ModelSpec* base_model();
  void take_options();
  void resolve_world();
  void resolve_batch();
  void require();
  std::string text() const;

  struct ProgramArgument {
    std::string value;
    Origin from;
    bool read = false;
  };
  const Options& options_;
  std::map<std::string, Decided, std::less<>> values_;
  std::map<std::string, ProgramArgument, std::less<>> program_arguments_;
  std::string framework_;
  std::vector<std::function<void()>> before_world_, later_;
  std::optional<ModelSpec> base_model_;
  bool base_model_tried_ = false;
  Report report_;
  Diagnostics errors_;
};

/// Every key path a job may have: "strategy.zero.prefetch_elements", "model.moe.experts".
const std::set<std::string, std::less<>>& job_keys();

}  // namespace wt::import
