// Weight gradients in blocks of their own, run later than the input gradients: the same training, beside other strategies.
#include <gtest/gtest.h>

#include <functional>

#include "core/lower/lower.hpp"
#include "tests/reference/alike.hpp"
#include "tests/reference/tiny.hpp"

namespace wt::reference {
namespace {

struct Variant {
  const char* name;
  std::function<void(JobSpec&)> change;
};

void zero_bubble(JobSpec& j, const char* schedule, int64_t others = 1) {
  j.strategy.schedule = schedule;
  j.strategy.pipeline = 2;
  j.strategy.virtual_stages = schedule == std::string("zb-v") ? 2 : 1;
  j.cluster.nodes = 2 * others;
}

const Variant kVariants[] = {
    {"zb_h1", [](JobSpec& j) { zero_bubble(j, "zb-h1"); }},
    {"zb_h1_pp4",
     [](JobSpec& j) {
       zero_bubble(j, "zb-h1", 2);
       j.strategy.pipeline = 4;
     }},
    {"zb_v", [](JobSpec& j) { zero_bubble(j, "zb-v"); }},
    {"zb_h2_tp2_sp",
     [](JobSpec& j) {
       zero_bubble(j, "zb-h2", 2);
       j.strategy.tensor = 2;
       j.strategy.sequence_parallel = true;
     }},
    {"zb_v_tp2",
     [](JobSpec& j) {
       zero_bubble(j, "zb-v", 2);
       j.strategy.tensor = 2;
     }},
    {"zb_h1_ddp",
     [](JobSpec& j) {
       zero_bubble(j, "zb-h1", 2);
       j.strategy.ddp_bucket = {20000};
       j.strategy.ddp_first_bucket = {1000};
     }},
    {"zb_v_distributed_overlap",
     [](JobSpec& j) {
       zero_bubble(j, "zb-v", 2);
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
       j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
       j.strategy.bucket_elements = 5000;
     }},
    {"zb_h1_selective",
     [](JobSpec& j) {
       zero_bubble(j, "zb-h1");
       j.strategy.recompute.kind = RecomputeKind::selective;
     }},
    {"zb_h2_unfused",
     [](JobSpec& j) {
       zero_bubble(j, "zb-h2");
       j.strategy.attention = AttentionKernel::unfused;
       j.training.fused_kernels = j.training.gradient_fusion = false;
     }},
    {"zb_h1_context",
     [](JobSpec& j) {
       zero_bubble(j, "zb-h1", 2);
       j.strategy.context = 2;
     }},
};

class SplitBackward : public testing::TestWithParam<bool> {};

TEST_P(SplitBackward, TrainsLikeOneRank) {
  JobSpec one = tiny_job();
  one.training.global_batch = 8;
  if (GetParam()) make_llama(one);
  one.model.tied_embeddings = false;
  const Trained a = train(one, 1);
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    JobSpec many = one;
    variant.change(many);
    expect_trains_like(a, many);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SplitBackward, testing::Bool(),
                         [](const auto& c) { return c.param ? "llama" : "gpt"; });

}  // namespace
}  // namespace wt::reference
