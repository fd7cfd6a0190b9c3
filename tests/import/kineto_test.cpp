// The reader of PyTorch profiler files: classes, phases, collectives and steps of a real host side (fixtures/make_kineto.py),
// each rule alone in made-up files, and every way in which such a file is broken.
#include "import/kineto.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "import/kernel_names.hpp"

namespace wt::import {
namespace {

using testing::HasSubstr;
using trace::Profile;
using trace::ProfilePhase;
using trace::ProfileSpan;
using trace::WorkClass;

std::string fixture(int rank) {
  return fmt::format("{}/tests/import/fixtures/kineto_rank{}.json.gz", WT_SOURCE_DIR, rank);
}

/// Events of one file of rank 0.
Result<Profile> parsed(std::string_view events,
                       std::string_view head = R"("distributedInfo":{"rank":0,"world_size":1},)") {
  const std::string json = fmt::format("{{{}\"traceEvents\":[{}]}}", head, events);
  return parse_kineto({{"t.json", json}});
}

Profile profile_of(std::string_view events) {
  auto p = parsed(events);
  EXPECT_TRUE(p) << to_text(p.errors());
  return p ? p.value() : Profile{};
}

std::string kernel(std::string_view name, double ts, double dur, int correlation, int stream = 7,
                   std::string_view more = "") {
  return fmt::format(R"({{"ph":"X","cat":"kernel","name":"{}","pid":0,"tid":{},"ts":{},"dur":{},"args":{{"device":0,)"
                     R"("stream":{},"correlation":{}{}}}}})",
                     name, stream, ts, dur, stream, correlation, more);
}
std::string launch(double ts, int correlation, int thread = 1) {
  return fmt::format(R"({{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":{},"ts":{},"dur":1,)"
                     R"("args":{{"correlation":{}}}}})",
                     thread, ts, correlation);
}
std::string host(std::string_view cat, std::string_view name, double ts, double dur, std::string_view args = "",
                 int thread = 1) {
  return fmt::format(R"({{"ph":"X","cat":"{}","name":"{}","pid":9,"tid":{},"ts":{},"dur":{},"args":{{{}}}}})", cat,
                     name, thread, ts, dur, args);
}
std::string joined(const std::vector<std::string>& events) { return fmt::format("{}", fmt::join(events, ",")); }

TEST(Kineto, APytorchRunOfTwoRanks) {
  auto read = read_kineto({fixture(1), fixture(0)});
  ASSERT_TRUE(read) << to_text(read.errors());
  const Profile& p = read.value();
  EXPECT_EQ(p.ranks, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(p.world, 2);
  EXPECT_TRUE(p.marked);
  ASSERT_EQ(p.steps.size(), 6u);
  EXPECT_EQ(p.steps[0].number, 2);  // after one step of waiting and one of warm-up
  EXPECT_EQ(p.steps[3].rank, 1u);
  std::map<std::string, int64_t> microseconds;  // of one step; all six are alike
  for (const ProfileSpan& s : p.spans) {
    ASSERT_NE(s.step, trace::kNoStep);
    EXPECT_EQ(s.rank, p.steps[s.step].rank);
    const int64_t us = (s.end_ps - s.begin_ps) / 1'000'000;
    microseconds[fmt::format("{} {} {}", s.step, to_text(s.work), to_text(s.phase))] += us;
    if (s.work == WorkClass::all_reduce) {
      EXPECT_EQ(s.group, 2);
      EXPECT_EQ(s.bytes, 20'960 * 4);
    }
  }
  // What the script put under the operators: 4 Linear with bias and the head forward; two products for each backward.
  const std::map<std::string, int64_t> expected = {
      {"gemm forward", 4 * 50 + 40}, {"gemm backward", 10 * 40},       {"attention forward", 30},
      {"attention backward", 70},    {"norm forward", 3 * 8},          {"norm backward", 3 * 12},
      {"elementwise forward", 13},   {"elementwise backward", 6},      {"embedding forward", 3},
      {"loss forward", 9 + 2},       {"optimizer optimizer", 20 + 25}, {"all_reduce backward", 60}};
  for (size_t step = 0; step < p.steps.size(); ++step)
    for (const auto& [what, us] : expected)
      EXPECT_EQ(microseconds[fmt::format("{} {}", step, what)], us) << step << " " << what;
  EXPECT_EQ(microseconds.size(), expected.size() * p.steps.size());
  EXPECT_TRUE(p.notes.empty());
}

TEST(Kineto, KernelsByName) {
  const std::pair<const char*, WorkClass> names[] = {
      {"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", WorkClass::gemm},
      {"ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", WorkClass::gemm},
      {"nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", WorkClass::gemm},
      {"Cijk_Alik_Bljk_BBS_BH_MT256x256x32_MI16x16x16x1", WorkClass::gemm},
      {"void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(float*)", WorkClass::gemm},
      {"sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw", WorkClass::gemm},
      {"void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, true>(Flash_fwd_params)", WorkClass::attention},
      {"void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>", WorkClass::attention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7", WorkClass::attention},
      {"fmha_cutlassB_f16_aligned_64x64_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)",
       WorkClass::attention},
      {"void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11>",
       WorkClass::attention},
      {"void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>", WorkClass::norm},
      {"void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>", WorkClass::norm},
      {"void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnnTensorStruct)", WorkClass::norm},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float>>", WorkClass::elementwise},
      {"triton_poi_fused_mul_silu_3", WorkClass::elementwise},
      {"triton_red_fused_native_layer_norm_0", WorkClass::norm},
      {"triton_tem_fused_mm_2", WorkClass::gemm},
      {"void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda()>", WorkClass::elementwise},
      {"void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float>>", WorkClass::optimizer},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<LpNormFunctor>", WorkClass::optimizer},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<CopyFunctor<c10::BFloat16>>",
       WorkClass::elementwise},
      {"void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>", WorkClass::loss},
      {"void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float>", WorkClass::loss},
      {"void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>", WorkClass::embedding},
      {"void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", WorkClass::routing},
      {"Memcpy HtoD (Pinned -> Device)", WorkClass::copy},
      {"Memset (Device)", WorkClass::copy},
      {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", WorkClass::reduce_scatter},
      {"ncclKernel_AllReduce_TREE_LL_Sum_float(ncclDevComm*)", WorkClass::all_reduce},
      {"ncclDevKernel_AllGather_RING_LL", WorkClass::all_gather},
      {"ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", WorkClass::send_receive},
      {"ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", WorkClass::communication},
      {"my_own_kernel", WorkClass::other},
  };
  for (const auto& [name, kind] : names) EXPECT_EQ(to_text(class_of_kernel(name)), to_text(kind)) << name;
  EXPECT_EQ(class_of_collective("_allgather_base"), WorkClass::all_gather);
  EXPECT_EQ(class_of_collective("reduce_scatter_tensor_coalesced"), WorkClass::reduce_scatter);
  EXPECT_EQ(class_of_collective("all_to_allv"), WorkClass::all_to_all);
  EXPECT_EQ(class_of_collective("wait"), WorkClass::other);
}

// NCCL's SendRecv is an all-to-all where the caller says so, on the kernel or on the host; RCCL's kernels have one name.
TEST(Kineto, WhatTheCallerOfACollectiveSays) {
  const Profile p = profile_of(joined(
      {kernel(
           "ncclDevKernel_SendRecv", 10, 5, 0, 9,
           R"(,"Collective name":"all_to_allv","In msg nelems":100,"Out msg nelems":80,"Group size":8,"dtype":"BFloat16")"),
       host(
           "cpu_op", "record_param_comms", 20, 10,
           R"("Collective name":"_allgather_base","In msg nelems":16,"Out msg nelems":128,"Group size":8,"dtype":"Float")"),
       launch(22, 5), kernel("ncclDevKernel_Generic_4", 30, 5, 5, 9), launch(40, 6),
       kernel("ncclDevKernel_SendRecv", 41, 5, 6, 9), host("user_annotation", "nccl:all_reduce", 50, 5), launch(52, 7),
       kernel("ncclDevKernel_Generic", 55, 5, 7, 9)}));
  ASSERT_EQ(p.spans.size(), 4u);
  EXPECT_EQ(p.spans[0].work, WorkClass::all_to_all);
  EXPECT_EQ(p.spans[0].bytes, 200);
  EXPECT_EQ(p.spans[0].group, 8);
  EXPECT_EQ(p.spans[1].work, WorkClass::all_gather);
  EXPECT_EQ(p.spans[1].bytes, 128 * 4);
  EXPECT_EQ(p.spans[2].work, WorkClass::send_receive);
  EXPECT_EQ(p.spans[2].group, 0);
  EXPECT_EQ(p.spans[3].work, WorkClass::all_reduce);
  EXPECT_EQ(p.spans[3].bytes, -1);
}

// A forward that checkpointing runs again has the marks of a forward, inside one of autograd's.
TEST(Kineto, PhasesByWhatLaunched) {
  const Profile p = profile_of(
      joined({host("cpu_op", "aten::mm", 100, 50, R"("Sequence number":3,"Fwd thread id":0)"), launch(110, 1),
              kernel("gemm", 200, 1, 1),
              host("cpu_op", "autograd::engine::evaluate_function: CheckpointBackward", 1000, 500, "", 2),
              host("user_annotation", "Block.forward", 1100, 100, "", 2), launch(1110, 2, 2),
              kernel("gemm", 1200, 1, 2), host("user_annotation", "Optimizer.step#AdamW.step", 2000, 100),
              launch(2010, 3), kernel("void at::native::vectorized_elementwise_kernel<4>", 2100, 1, 3), launch(3000, 4),
              kernel("gemm", 3100, 1, 4), kernel("gemm", 3200, 1, 99),
              host("user_annotation", "## backward ##", 4000, 100), launch(4010, 5), kernel("gemm", 4100, 1, 5)}));
  ASSERT_EQ(p.spans.size(), 6u);
  EXPECT_EQ(p.spans[0].phase, ProfilePhase::forward);
  EXPECT_EQ(p.spans[1].phase, ProfilePhase::backward);
  EXPECT_EQ(p.spans[2].phase, ProfilePhase::optimizer);
  EXPECT_EQ(p.spans[2].work, WorkClass::optimizer);
  EXPECT_EQ(p.spans[3].phase, ProfilePhase::outside);  // under nothing
  EXPECT_EQ(p.spans[4].phase, ProfilePhase::outside);  // no launch
  EXPECT_EQ(p.spans[5].phase, ProfilePhase::backward);
  ASSERT_EQ(p.notes.size(), 2u);
  EXPECT_THAT(p.notes[0], HasSubstr("1 of 6 device spans have no launch"));
  EXPECT_THAT(p.notes[1], HasSubstr("nothing marks steps"));
}

// The device works on a step until the next one's first kernel; work belongs to the step that launched it.
TEST(Kineto, StepsByTheirMarks) {
  const Profile p =
      profile_of(joined({host("user_annotation", "ProfilerStep#7", 0, 100), launch(10, 1), kernel("gemm", 50, 80, 1),
                         host("user_annotation", "ProfilerStep#8", 100, 120), launch(110, 2),
                         kernel("gemm", 250, 40, 2), launch(500, 3), kernel("gemm", 510, 1, 3)}));
  ASSERT_EQ(p.steps.size(), 2u);
  EXPECT_EQ(p.steps[0].number, 7);
  EXPECT_EQ(p.steps[0].length_ps, 200'000'000);
  EXPECT_EQ(p.steps[1].length_ps, 120'000'000);  // the last: its mark
  ASSERT_EQ(p.spans.size(), 3u);
  EXPECT_EQ(p.spans[0].step, 0u);
  EXPECT_EQ(p.spans[1].step, 1u);
  EXPECT_EQ(p.spans[2].step, trace::kNoStep);
  EXPECT_THAT(p.notes[0], HasSubstr("1 of 3 device spans lie in no ProfilerStep"));
}

// 2^53 microseconds are 285 years: a double holds the microseconds of an epoch and no nanoseconds.
TEST(Kineto, TimesToTheNanosecond) {
  const Profile p =
      profile_of(R"({"ph":"X","cat":"kernel","name":"gemm","ts":1682725898236567.125,"dur":0.001,"args":{"stream":7}},)"
                 R"({"ph":"X","cat":"kernel","name":"gemm","ts":1682725898236567.127,"dur":2,"args":{"stream":7}})");
  ASSERT_EQ(p.spans.size(), 2u);
  EXPECT_EQ(p.spans[0].begin_ps, 0);
  EXPECT_EQ(p.spans[0].end_ps, 1'000);
  EXPECT_EQ(p.spans[1].begin_ps, 2'000);
}

TEST(Kineto, ABareListAndNamesOfRanks) {
  const std::string list = "[" + kernel("gemm", 0, 1, 0) + "]";
  auto p = parse_kineto({{"dir/trace_rank-12.json", list}, {"worker.json", list}});
  ASSERT_TRUE(p) << to_text(p.errors());
  EXPECT_EQ(p.value().ranks, (std::vector<uint32_t>{1, 12}));
  EXPECT_EQ(p.value().world, 0);
}

// What is no time is counted, whatever else is well.
TEST(Kineto, EventsWithoutTimesAreCounted) {
  const Profile p = profile_of(joined({kernel("gemm", 0, 1, 0), R"({"ph":"X","cat":"kernel","name":"a","ts":5})",
                                       R"({"ph":"X","cat":"kernel","name":"a","ts":5,"dur":-1})",
                                       R"({"ph":"X","cat":"kernel","name":"a","ts":1e300,"dur":1})",
                                       R"({"ph":"X","cat":"kernel","name":"a","ts":"5","dur":1})"}));
  EXPECT_EQ(p.spans.size(), 1u);
  EXPECT_THAT(p.notes, testing::Contains(HasSubstr("4 events have no time")));
}

std::string fault_of(const Result<Profile>& r) { return r ? "read" : to_text(r.errors()); }

TEST(KinetoBroken, SaysWhatAndWhere) {
  const std::string good = kernel("gemm", 0, 1, 0);
  EXPECT_THAT(fault_of(parse_kineto({{"t.json", "{\"traceEvents\":[" + good}})),
              HasSubstr("t.json: is no JSON at byte"));
  EXPECT_THAT(fault_of(parse_kineto({{"t.json", "{\"traceEvents\":[" + good}})), HasSubstr("after 1 events"));
  EXPECT_THAT(fault_of(parse_kineto({{"t.json", ""}})), HasSubstr("is no JSON"));
  EXPECT_THAT(fault_of(parse_kineto({{"t.json", "{\"a\":1}"}})), HasSubstr("has no \"traceEvents\""));
  EXPECT_THAT(fault_of(parse_kineto({{"t.json", "{\"traceEvents\":" + std::string(1'000'000, '[')}})),
              HasSubstr("nests deeper than 64 levels"));
  EXPECT_THAT(fault_of(parsed(host("cpu_op", "aten::mm", 0, 1))),
              HasSubstr("1 operators of the host and no work of a device"));
  EXPECT_THAT(fault_of(read_kineto({"/no/such/file.json"})), HasSubstr("cannot open"));
  const std::string rank0 =
      fmt::format(R"({{"distributedInfo":{{"rank":0,"world_size":4}},"traceEvents":[{}]}})", good);
  const std::string rank1 =
      fmt::format(R"({{"distributedInfo":{{"rank":1,"world_size":8}},"traceEvents":[{}]}})", good);
  EXPECT_THAT(fault_of(parse_kineto({{"a.json", rank0}, {"b.json", rank0}})),
              HasSubstr("b.json: is of rank 0, and so is a.json"));
  EXPECT_THAT(fault_of(parse_kineto({{"a.json", rank0}, {"b.json", rank1}})), HasSubstr("is of 8 ranks, a.json of 4"));
}

TEST(KinetoBroken, LimitsHold) {
  std::string events = kernel("gemm", 0, 1, 0);
  for (int i = 1; i < 100; ++i) events += "," + kernel(fmt::format("gemm{}", i), i, 1, 0);
  const std::string json = "[" + events + "]";
  EXPECT_THAT(fault_of(parse_kineto({{"t", json}}, {.bytes = 1000})), HasSubstr("is larger than 1,000 bytes"));
  EXPECT_THAT(fault_of(parse_kineto({{"t", json}}, {.kept = 50})), HasSubstr("holds more than 50 events"));
  EXPECT_FALSE(parse_kineto({{"t", json}}, {.names = 100}));
  EXPECT_TRUE(parse_kineto({{"t", json}}));
}

TEST(KinetoBroken, CutCompression) {
  const auto path = std::filesystem::path(testing::TempDir()) / "cut.json.gz";
  std::ifstream in(fixture(0), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::ofstream(path, std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  EXPECT_THAT(fault_of(read_kineto({path.string()})), HasSubstr("its compressed data end early"));
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_NE(fault_of(read_kineto({path.string()})), "read");
  std::filesystem::remove(path);
}

TEST(Kineto, IsToldFromAJob) {
  EXPECT_TRUE(looks_like_profile(fixture(0)));
  EXPECT_FALSE(looks_like_profile(WT_SOURCE_DIR "/examples/tiny-gpt.yaml"));
  EXPECT_FALSE(looks_like_profile(WT_SOURCE_DIR "/examples/llama3-70b-config.json"));
  EXPECT_FALSE(looks_like_profile("/no/such/file.json"));
}

}  // namespace
}  // namespace wt::import
