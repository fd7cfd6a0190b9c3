// Published training runs as their files give them: the format of cases/published_runs.yaml (and of the
// out-of-memory files, the same with `result`). Plain values; what the source leaves out is empty, nothing is guessed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt::study {

/// One row. Counts are of ranks, layers, sequences or tokens as their names say.
struct Case {
  std::string id, group, tier, cluster, task, title, where, notes;
  int64_t year = 0;  // 0: not given
  int line = 0;      // of the file

  std::string model, attention;
  std::optional<int64_t> layers, hidden, ffn_hidden, heads, kv_heads, head_dim, vocab, seq_len;
  std::optional<bool> gated_mlp, tied_embeddings;
  std::optional<MoeSpec> moe;
  std::optional<MlaSpec> mla;
  int64_t mtp_layers = 0;

  std::string gpu, intra, inter;
  std::optional<int64_t> gpus, gpus_per_node, nvlink_domain;
  std::optional<double> memory_gb, power_limit_w, memory_bandwidth_tb_s;

  std::optional<int64_t> tp, pp, dp, cp, ep, etp, vpp, zero_stage;
  std::optional<bool> sp, fsdp;
  std::string schedule, hybrid_shard;

  std::optional<int64_t> micro, global, grad_accum;
  std::string precision, recompute, offload, framework, overlap, flash_attention, attention_kernel;

  std::map<std::string, double> measured;  // "step_time_s", "tokens_per_s", ..., "derived.step_time_s_if_full"
  std::string flops_convention, matched;   // check.matched
  std::vector<std::string> unknown_fields;
  std::string result;  // "OOM ..." in files of configurations that ran out of memory

  std::string fault;  // a value that cannot be read: the row is skipped with this reason, the file is not refused

  bool unknown(std::string_view field) const;
  bool ran_out_of_memory() const { return result.starts_with("OOM"); }
};

struct CaseFile {
  std::string path;
  std::vector<Case> cases;
  std::vector<std::string> warnings;  // keys that this version does not know, with their first line
};

/// Errors (all at once, with their line): not YAML, not a list of maps, a row without `id`, an id twice in the file.
Result<CaseFile> read_cases(const std::string& path);
Result<CaseFile> parse_cases(const std::string& text, const std::string& label);

}  // namespace wt::study
