// Every fault that validate knows, planted in the small plan: the message and where it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/plan/plan_io.hpp"
#include "tests/core/plan/small_plan.hpp"

namespace wt::plan {
namespace {

std::string faults_of(const Plan& p) {
  const Status s = validate(p);
  return s.ok() ? "" : to_text(s.errors());
}

TEST(Validate, TheSmallPlanIsValid) { EXPECT_EQ(faults_of(small_plan()), ""); }

struct Case {
  const char* name;
  std::function<void(Plan&)> plant;
  const char* expected;  // a part of the messages
};

Op& op(Plan& p, size_t block, size_t k) { return p.blocks[block].ops[k]; }
BufferRef& ref(Plan& p, size_t block, Range r, size_t i = 0) { return p.blocks[block].refs[r.begin + i]; }

class ValidateFault : public testing::TestWithParam<Case> {};

TEST_P(ValidateFault, IsFound) {
  Plan p = small_plan();
  GetParam().plant(p);
  EXPECT_THAT(faults_of(p), testing::HasSubstr(GetParam().expected));
}

const Case kCases[] = {
    // structure
    {"axis_size", [](Plan& p) { p.mesh.axes[1].size = 0; }, "axis 'dp' has size 0"},
    {"too_many_ranks", [](Plan& p) { p.mesh.axes[1].size = int64_t{1} << 40; }, "at most 2^31 ranks"},
    {"pipeline", [](Plan& p) { p.placement.pipeline = 4; }, "pipeline is 4 but the mesh's pp axis has 2"},
    {"group_axis", [](Plan& p) { p.groups[0].axes[0].v = 9; }, "group 'dp': has axis 9"},
    {"group_twice", [](Plan& p) { p.groups[0].axes.push_back(p.groups[0].axes[0]); }, "has axis 'dp' twice"},
    {"group_filter",
     [](Plan& p) {
       p.groups[1].filter->values = {0, 2};
     },
     "value 2 of its filter on 'pp'"},
    {"group_name", [](Plan& p) { p.groups[1].name = "dp"; }, "two groups are named 'dp'"},
    {"buffer_name", [](Plan& p) { p.buffers[1].name = "flat"; }, "two buffers are named 'flat'"},
    {"block_name", [](Plan& p) { p.blocks[1].name = "setup"; }, "two blocks are named 'setup'"},
    {"part_name", [](Plan& p) { p.parts[1].name = "first"; }, "two parts are named 'first'"},
    {"program_name", [](Plan& p) { p.programs[1].name = "first"; }, "two programs are named 'first'"},
    {"no_name", [](Plan& p) { p.blocks[1].name = ""; }, "a block has no name"},
    {"shape",
     [](Plan& p) {
       p.buffers[kOut].shape = {1 << 30, 1 << 30, 1 << 30};
     },
     "is empty or too large"},
    {"shard_dim",
     [](Plan& p) {
       p.buffers[kWeight].shards = {{2, GroupId{0}, 1}};
     },
     "is sharded in dim 2 of 2"},
    {"shard_blocks",
     [](Plan& p) {
       p.buffers[kWeight].shards = {{0, GroupId{0}, 3}};
     },
     "not 3 equal blocks"},
    {"own_view", [](Plan& p) { p.parts[0].persistent.push_back(BufferId{kWeight}); }, "owns 'weight', which is a view"},
    {"view_range", [](Plan& p) { p.parts[0].views[1].offset = 5; }, "reaches beyond its 12 elements"},
    {"view_pieces", [](Plan& p) { p.parts[0].views[1].shard_group = GroupId{0}; }, "reaches beyond its 12 elements"},
    {"view_twice", [](Plan& p) { p.parts[0].views.push_back(p.parts[0].views[0]); }, "placed twice"},
    {"view_circle",
     [](Plan& p) {
       p.buffers[kFlat].view = true;
       p.parts[0].persistent.erase(p.parts[0].persistent.begin());
       p.parts[0].views.push_back({BufferId{kFlat}, BufferId{kFlat}, 0, 0, 0, 0, {}});
     },
     "go in a circle"},
    {"view_type", [](Plan& p) { p.buffers[kFlat].dtype = DType::bf16; }, "element types f32 and bf16"},
    {"segment_gap", [](Plan& p) { p.blocks[1].segments[0].op_count = 2; }, "3 ops, 2 of them in segments"},
    {"segment_layers", [](Plan& p) { p.blocks[1].segments[0].first_layer = 2; },
     "runs over layers 2 to 2 of a part with 1"},
    {"wait_later", [](Plan& p) { p.blocks[kBackward0].waits[0].index = 3; },
     "waits for op 3 (dgrad), which comes later"},
    {"wait_unknown", [](Plan& p) { p.blocks[kBackward0].waits[0].index = 99; },
     "waits for op 99, which does not exist"},
    {"wait_stream", [](Plan& p) { p.blocks[kForward0].waits[0].index = 77; }, "waits for stream 77"},
    {"operand", [](Plan& p) { ref(p, 1, op(p, 1, 0).writes).buffer = BufferId{99}; }, "names buffer 99"},
    {"layer_offset", [](Plan& p) { ref(p, 1, op(p, 1, 2).reads).layer_offset = 2; },
     "'hidden' of layers 2 to 2: there are 0 to 1"},
    {"persistent_layer", [](Plan& p) { ref(p, 2, op(p, 2, 2).writes).layer_offset = 1; },
     "'weight grad' of layers 1 to 1: there are 0 to 0"},
    {"no_layers", [](Plan& p) { ref(p, 2, op(p, 2, 1).writes).layer_offset = 1; },
     "'d_out' has no layers but an offset 1"},
    {"operands", [](Plan& p) { op(p, kForward1, 1).reads.count = 1; }, "gemm reads 1 buffers: 2 to 3"},
    {"cannot_accumulate", [](Plan& p) { std::get<Compute>(op(p, 1, 0).body).accumulate = true; },
     "fill_zero cannot accumulate"},
    {"send_bytes", [](Plan& p) { std::get<Send>(op(p, 1, 2).body).bytes = 60; }, "sends 60 bytes, its buffers hold 64"},
    {"collective_bytes", [](Plan& p) { std::get<Collective>(op(p, kUpdate, 0).body).bytes = 47; },
     "47 bytes, its buffers hold 48"},
    {"collective_shape",
     [](Plan& p) { std::get<Collective>(op(p, kUpdate, 0).body).kind = CollectiveKind::all_gather; },
     "all_gather over 2 ranks from 'gradients' of 12 elements to 'gradients' of 12"},
    {"collective_type", [](Plan& p) { std::get<Collective>(op(p, kUpdate, 0).body).dtype = DType::bf16; },
     "is of bf16, its buffers of f32"},
    {"chunk", [](Plan& p) { p.programs[0].steps[0].order[0].binding[0].chunk = 1; }, "there are 1 chunks"},
    {"micro_batch", [](Plan& p) { p.programs[0].steps[0].order[0].binding[0].micro_batch = 2; }, "and 2 micro-batches"},
    {"wrong_part", [](Plan& p) { p.programs[0].steps[0].order[0].block.v = kForward1; },
     "chunk 0 is a 'first', the block is of 'last'"},
    {"bindings", [](Plan& p) { p.programs[0].steps[0].order[0].bindings = 0; },
     "binds 0 chunks, its block is of a part"},
    {"steps_differ", [](Plan& p) { p.programs[1].steps[0].name = "other"; },
     "its steps are not those of program 'first'"},
    {"chunks", [](Plan& p) { p.programs[0].chunks.clear(); }, "0 chunks and 1 first layers"},
    // programs
    {"no_program", [](Plan& p) { p.programs.pop_back(); }, "rank 2: has no program"},
    {"two_programs",
     [](Plan& p) {
       p.programs[0].when.values = {0, 1};
     },
     "has programs 'first' and 'last'"},
    {"layers", [](Plan& p) { p.programs[1].first_layer = {3}; },
     "ends before layer 1, the next stage begins at layer 3"},
    // storage
    {"not_reserved", [](Plan& p) { op(p, 1, 0).reserves.count = 0; },
     "block 'forward first', op 0 (input): writes 'hidden', which is not reserved (first in program 'first', step "
     "'steady', invocation 0 (forward first chunk 0 micro-batch 0), layer 0)"},
    {"reserved_twice", [](Plan& p) { p.programs[0].steps[0].order[1].binding[0].micro_batch = 0; },
     "reserves 'hidden', which is reserved already"},
    {"not_released", [](Plan& p) { op(p, kBackward0, 3).releases.count = 1; }, "ends with 'hidden' still reserved"},
    {"invocation_not_released", [](Plan& p) { op(p, kForward1, 1).releases.count = 0; },
     "block 'forward last': ends with 'out' still reserved"},
    {"released_twice", [](Plan& p) { ref(p, kBackward0, op(p, kBackward0, 4).releases) = {BufferId{kDOut}}; },
     "releases 'd_out', which is not reserved"},
    {"never_written",
     [](Plan& p) {
       ref(p, kForward0, op(p, 1, 1).reads) = {BufferId{kHidden}, 1};
     },
     "reads 'hidden', which was never written"},
    {"weight_not_loaded", [](Plan& p) { op(p, 6, 0).writes.count = 0; },
     "op 1 (layer): reads 'weight', which was never written"},
    {"gradient_not_zeroed", [](Plan& p) { op(p, 0, 1).writes.begin = op(p, 0, 0).writes.begin; },
     "op 2 (wgrad): adds to 'weight grad', which was never written"},
    {"reserve_view",
     [](Plan& p) {
       ref(p, 0, op(p, 0, 0).reserves) = {BufferId{kWeight}};
       p.blocks[0].segments[0].first_layer = 0;
     },
     "reserves 'weight', a view"},
    {"not_owned",
     [](Plan& p) {
       p.buffers.push_back(p.buffers[kFlat]);
       p.buffers.back().name = "more";
       p.parts[0].persistent.push_back(BufferId{kSmallBuffers});
     },
     "setup: does not reserve 'more', which part 'first' owns"},
    {"step_reserves", [](Plan& p) { op(p, kUpdate, 3).releases = op(p, kUpdate, 3).writes; },
     "releases 'gradients', which was reserved before the step"},
    {"view_unplaced", [](Plan& p) { p.parts[0].views.pop_back(); },
     "'weight grad' is a view that the part does not place"},
    // progress
    {"no_peer", [](Plan& p) { std::get<Send>(op(p, 1, 2).body).to = Direction::previous_stage; },
     "there is no previous_stage"},
    {"sizes_meet",
     [](Plan& p) {
       std::get<Receive>(op(p, kForward1, 0).body).bytes = 128;
       ref(p, kForward1, op(p, kForward1, 0).writes) = {BufferId{kHidden}};
       op(p, kForward1, 0).writes.count = 2;
       p.blocks[kForward1].refs.insert(p.blocks[kForward1].refs.begin() + op(p, kForward1, 0).writes.begin,
                                       {BufferId{kHidden}});
       for (size_t i = 0; i < 2; ++i)
         for (Range Op::*list : {&Op::reads, &Op::writes, &Op::reserves, &Op::releases})
           if ((op(p, kForward1, i).*list).begin > op(p, kForward1, 0).writes.begin)
             ++(op(p, kForward1, i).*list).begin;
       ++op(p, kForward1, 0).reserves.begin;
     },
     "128 bytes meet 64 bytes"},
    {"order_meets", [](Plan& p) { std::swap(p.programs[1].steps[0].order[0], p.programs[1].steps[0].order[1]); },
     "expects chunk 0 micro-batch 1 and meets chunk 0 micro-batch 0"},
    {"collectives_differ", [](Plan& p) { std::get<Collective>(op(p, 7, 1).body).reduction = Reduction::max; },
     "in group 'ends'"},
    {"collective_alone",
     [](Plan& p) {
       op(p, 7, 1) = op(p, 7, 3);
       op(p, 7, 1).stream = Stream::data;
     },
     "op 1 (ends): is stuck: 1 of 2 ranks ever issue it"},
    {"excluded",
     [](Plan& p) {
       p.groups[1].filter->values = {0};
       std::get<Collective>(op(p, 7, 1).body).bytes = 48;
     },
     "the filter of group 'ends' excludes the rank"},
    {"stuck",
     [](Plan& p) {
       // Stage 0 wants its gradients first; what it would send is computed after them.
       auto& order = p.programs[0].steps[0].order;
       std::swap(order[0], order[2]);
       std::swap(order[1], order[3]);
     },
     "is stuck: waits for rank"},
};

INSTANTIATE_TEST_SUITE_P(Planted, ValidateFault, testing::ValuesIn(kCases), [](const auto& c) { return c.param.name; });

TEST(Validate, TellsAllFaultsAtOnce) {
  Plan p = small_plan();
  p.groups[1].name = "dp";
  p.buffers[1].name = "flat";
  const std::string all = faults_of(p);
  EXPECT_THAT(all, testing::HasSubstr("two groups"));
  EXPECT_THAT(all, testing::HasSubstr("two buffers"));
}

/// A stage whose host wants the gradient before it has issued the send of the output.
TEST(Validate, AStuckPlanNamesEveryStuckRankAndOp) {
  Plan p = small_plan();
  p.blocks[kBackward0].ops[1].body = HostWait{};
  p.blocks[kBackward0].ops[1].stream = Stream::copy_in;  // only the host knows that it waited
  auto& order = p.programs[0].steps[0].order;
  std::swap(order[0], order[2]);
  std::swap(order[1], order[3]);
  const std::string all = faults_of(p);
  EXPECT_THAT(all,
              testing::HasSubstr(
                  "rank 0, step 'steady', invocation 0 (backward first chunk 0 micro-batch 0), op 0 (receive) layer 0: "
                  "is stuck: waits for rank 2 (2 ranks alike)"));
  EXPECT_THAT(all,
              testing::HasSubstr(
                  "rank 2, step 'steady', invocation 0 (forward last chunk 0 micro-batch 0), op 0 (receive) layer 0: "
                  "is stuck: waits for rank 0 (2 ranks alike)"));
}

TEST(Validate, RanksThatAreAlikeCostNothing) {
  Plan p = small_plan();
  p.mesh.axes[1].size = 1 << 20;
  EXPECT_EQ(faults_of(p), "");
}

}  // namespace
}  // namespace wt::plan
