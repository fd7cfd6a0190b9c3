// The strategies that every test of the executor goes through, on the tiny models of tests/reference.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/lower/lower.hpp"
#include "core/lower/schedule.hpp"
#include "core/spec/names.hpp"
#include "core/spec/specs.hpp"
#include "tests/reference/sharded.hpp"
#include "tests/reference/tiny.hpp"

namespace wt::exec {

/// Under a sanitizer every access takes some ten times as long: fewer cases see the same code and threads.
#if !defined(__has_feature)  // gcc says it by macros, clang by features
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) || \
    __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

struct Variant {
  std::string name;
  std::function<void(JobSpec&)> change;
};

inline void cut(JobSpec& j, int64_t tensor, int64_t pipeline, int64_t data) {
  j.strategy.tensor = tensor;
  j.strategy.pipeline = pipeline;
  j.cluster.nodes = tensor * pipeline * data;
}

inline std::vector<Variant> models() {
  return {{"gpt", [](JobSpec&) {}}, {"llama", [](JobSpec& j) { reference::make_llama(j); }}};
}

/// One rank first. Every registered schedule that accepts two stages comes with one and two chunks.
inline std::vector<Variant> strategies() {
  auto tensor = [](bool sequence, bool overlap) {
    return [=](JobSpec& j) {
      cut(j, 2, 1, 1);
      j.strategy.sequence_parallel = sequence;
      j.strategy.tensor_overlap = overlap;
    };
  };
  auto data = [](DataParallel kind, bool overlap, int64_t elements) {
    return [=](JobSpec& j) {
      cut(j, 1, 1, 2);
      j.strategy.data_parallel = kind;
      j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = overlap;
      j.strategy.bucket_elements = elements;
      j.strategy.ddp_bucket = {20000};
      j.strategy.ddp_first_bucket = {1000};
    };
  };
  std::vector<Variant> all = {
      {"one", [](JobSpec& j) { cut(j, 1, 1, 1); }},
      {"tp2", tensor(false, false)},
      {"tp2_sp", tensor(true, false)},
      {"tp2_sp_overlap", tensor(true, true)},
      {"dp2_ddp", data(DataParallel::ddp, false, 0)},
      {"dp2_megatron", data(DataParallel::megatron, false, 0)},
      {"dp2_distributed", data(DataParallel::distributed_optimizer, false, 0)},
      {"dp2_distributed_overlap", data(DataParallel::distributed_optimizer, true, 5000)},
      {"dp2_zero1", data(DataParallel::zero1, false, 7000)},
      {"dp2_zero1_offload",
       [=](JobSpec& j) {
         data(DataParallel::zero1, false, 7000)(j);
         j.strategy.offload.optimizer = OffloadDevice::cpu;
       }},
      {"dp2_distributed_offload",
       [=](JobSpec& j) {
         data(DataParallel::distributed_optimizer, false, 0)(j);
         j.strategy.offload.optimizer = OffloadDevice::cpu;
         j.strategy.offload.overlap = true;
       }},
      {"pp2_activations",
       [](JobSpec& j) {
         cut(j, 1, 2, 1);
         j.strategy.offload.activation_layers = 1;
       }},
      {"recompute_full",
       [](JobSpec& j) {
         cut(j, 1, 1, 1);
         j.strategy.recompute.kind = RecomputeKind::full;
       }},
      {"unfused_selective_tp2_sp",
       [](JobSpec& j) {
         cut(j, 2, 1, 1);
         j.strategy.attention = AttentionKernel::unfused;
         j.strategy.recompute.kind = RecomputeKind::selective;
         j.strategy.sequence_parallel = true;
       }},
      {"tp2_pp2_dp2",
       [](JobSpec& j) {
         cut(j, 2, 2, 2);
         j.strategy.sequence_parallel = true;
         j.strategy.ddp_bucket = {20000};
         j.strategy.ddp_first_bucket = {1000};
       }},
      {"tp2_pp2_dp2_interleaved_distributed",
       [](JobSpec& j) {
         cut(j, 2, 2, 2);
         j.strategy.sequence_parallel = true;
         j.strategy.data_parallel = DataParallel::distributed_optimizer;
         j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
         j.strategy.bucket_elements = 5000;
         j.strategy.schedule = "interleaved";
         j.strategy.virtual_stages = 2;
         j.strategy.recompute.kind = RecomputeKind::selective;
       }},
  };
  for (const auto exchange : {ContextExchange::ring, ContextExchange::all_gather, ContextExchange::all_to_all})
    all.push_back({"cp2_" + std::string(to_text(exchange)), [exchange](JobSpec& j) {
                     cut(j, 1, 1, 2);
                     j.strategy.context = 2;
                     j.strategy.context_exchange = exchange;
                   }});
  all.push_back({"cp4_hierarchical_pp2", [](JobSpec& j) {
                   cut(j, 1, 2, 4);
                   j.strategy.context = 4;
                   j.strategy.context_all_to_all = 2;
                 }});
  all.push_back({"cp2_tp2_dp2_ring", [](JobSpec& j) {
                   cut(j, 2, 1, 4);
                   j.strategy.sequence_parallel = true;
                   j.strategy.context = 2;
                   j.strategy.ddp_bucket = {20000};
                 }});
  all.push_back({"pp4_dp2_zb_h1", [](JobSpec& j) {
                   cut(j, 1, 4, 2);
                   j.strategy.schedule = "zb-h1";
                   j.strategy.data_parallel = DataParallel::megatron;
                 }});
  for (const lower::Schedule* schedule : lower::all_schedules())
    for (const int64_t chunks : {1, 2}) {
      const bool both_ends = schedule->placement == plan::PlacementKind::zigzag;  // on one rank: no table is shared
      auto change = [name = std::string(schedule->name), chunks, both_ends](JobSpec& j) {
        cut(j, 1, 2, 1);
        j.strategy.schedule = name;
        j.strategy.virtual_stages = chunks;
        if (both_ends) j.model.tied_embeddings = false;
      };
      JobSpec probe = reference::tiny_job();
      change(probe);
      if (!lower::lower(probe).ok()) continue;
      std::string name = std::string("pp2_") + std::string(schedule->name) + (chunks > 1 ? "_chunks" : "");
      std::replace(name.begin(), name.end(), '-', '_');  // as names of tests must be
      all.push_back({std::move(name), change});
    }
  return all;
}

/// FSDP 1 and 2, ZeRO-2 and ZeRO-3, on up to eight ranks.
inline std::vector<Variant> sharded_strategies() {
  std::vector<Variant> all;
  for (const reference::Sharded& v : reference::kSharded)
    all.push_back({v.name, [&v](JobSpec& j) { reference::apply(v, j); }});
  return all;
}

}  // namespace wt::exec
