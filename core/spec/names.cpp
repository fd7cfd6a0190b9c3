#include "core/spec/names.hpp"

namespace wt {

std::string_view spelled(DType t) {
  switch (t) {
    case DType::f64: return "fp64";
    case DType::f32: return "fp32";
    case DType::f16: return "fp16";
    case DType::f8: return "fp8";
    default: return to_text(t);
  }
}

std::span<const Named<Activation>> names_of(Activation) {
  static constexpr Named<Activation> k[] = {
      {"gelu", Activation::gelu}, {"silu", Activation::silu}, {"relu", Activation::relu}};
  return k;
}
std::span<const Named<Norm>> names_of(Norm) {
  static constexpr Named<Norm> k[] = {{"layer_norm", Norm::layer_norm}, {"rms_norm", Norm::rms_norm}};
  return k;
}
std::span<const Named<Position>> names_of(Position) {
  static constexpr Named<Position> k[] = {{"none", Position::none},
                                          {"learned", Position::learned},
                                          {"rotary", Position::rotary},
                                          {"alibi", Position::alibi}};
  return k;
}
std::span<const Named<GpuGeneration>> names_of(GpuGeneration) {
  static constexpr Named<GpuGeneration> k[] = {
      {"volta", GpuGeneration::volta}, {"turing", GpuGeneration::turing}, {"ampere", GpuGeneration::ampere},
      {"ada", GpuGeneration::ada},     {"hopper", GpuGeneration::hopper}, {"blackwell", GpuGeneration::blackwell},
      {"cdna2", GpuGeneration::cdna2}, {"cdna3", GpuGeneration::cdna3},   {"cdna4", GpuGeneration::cdna4},
      {"other", GpuGeneration::other}};
  return k;
}
std::span<const Named<ScaleUpKind>> names_of(ScaleUpKind) {
  static constexpr Named<ScaleUpKind> k[] = {{"none", ScaleUpKind::none},
                                             {"nvswitch", ScaleUpKind::nvswitch},
                                             {"nvlink_mesh", ScaleUpKind::nvlink_mesh},
                                             {"nvlink_pairs", ScaleUpKind::nvlink_pairs},
                                             {"xgmi_mesh", ScaleUpKind::xgmi_mesh},
                                             {"pcie", ScaleUpKind::pcie}};
  return k;
}
std::span<const Named<FabricKind>> names_of(FabricKind) {
  static constexpr Named<FabricKind> k[] = {{"none", FabricKind::none},         {"infiniband", FabricKind::infiniband},
                                            {"roce", FabricKind::roce},         {"ethernet", FabricKind::ethernet},
                                            {"efa", FabricKind::efa},           {"slingshot", FabricKind::slingshot},
                                            {"omnipath", FabricKind::omnipath}, {"tcpx", FabricKind::tcpx}};
  return k;
}
std::span<const Named<TransferKind>> names_of(TransferKind) {
  static constexpr Named<TransferKind> k[] = {
      {"all_reduce", TransferKind::all_reduce},         {"all_gather", TransferKind::all_gather},
      {"reduce_scatter", TransferKind::reduce_scatter}, {"all_to_all", TransferKind::all_to_all},
      {"broadcast", TransferKind::broadcast},           {"message", TransferKind::message}};
  return k;
}
std::span<const Named<DataParallel>> names_of(DataParallel) {
  static constexpr Named<DataParallel> k[] = {{"ddp", DataParallel::ddp},
                                              {"megatron", DataParallel::megatron},
                                              {"distributed_optimizer", DataParallel::distributed_optimizer},
                                              {"zero1", DataParallel::zero1},
                                              {"zero2", DataParallel::zero2},
                                              {"zero3", DataParallel::zero3},
                                              {"fsdp", DataParallel::fsdp},
                                              {"fsdp2", DataParallel::fsdp2}};
  return k;
}
std::span<const Named<ShardingKind>> names_of(ShardingKind) {
  static constexpr Named<ShardingKind> k[] = {{"full_shard", ShardingKind::full_shard},
                                              {"shard_grad_op", ShardingKind::shard_grad_op},
                                              {"no_shard", ShardingKind::no_shard},
                                              {"hybrid_shard", ShardingKind::hybrid_shard},
                                              {"hybrid_shard_zero2", ShardingKind::hybrid_shard_zero2}};
  return k;
}
std::span<const Named<BackwardPrefetch>> names_of(BackwardPrefetch) {
  static constexpr Named<BackwardPrefetch> k[] = {
      {"pre", BackwardPrefetch::pre}, {"post", BackwardPrefetch::post}, {"none", BackwardPrefetch::none}};
  return k;
}
std::span<const Named<WrapKind>> names_of(WrapKind) {
  static constexpr Named<WrapKind> k[] = {
      {"block", WrapKind::block}, {"block_and_ends", WrapKind::block_and_ends}, {"model", WrapKind::model}};
  return k;
}
std::span<const Named<GradientCopies>> names_of(GradientCopies) {
  static constexpr Named<GradientCopies> k[] = {
      {"automatic", GradientCopies::automatic}, {"none", GradientCopies::none},
      {"flat", GradientCopies::flat},           {"flat_wide", GradientCopies::flat_wide},
      {"narrow", GradientCopies::narrow},       {"flat_step", GradientCopies::flat_step}};
  return k;
}
std::span<const Named<RecomputeKind>> names_of(RecomputeKind) {
  static constexpr Named<RecomputeKind> k[] = {
      {"none", RecomputeKind::none}, {"selective", RecomputeKind::selective}, {"full", RecomputeKind::full}};
  return k;
}
std::span<const Named<RecomputeMethod>> names_of(RecomputeMethod) {
  static constexpr Named<RecomputeMethod> k[] = {{"uniform", RecomputeMethod::uniform},
                                                 {"block", RecomputeMethod::block}};
  return k;
}
std::span<const Named<AttentionKernel>> names_of(AttentionKernel) {
  static constexpr Named<AttentionKernel> k[] = {{"flash", AttentionKernel::flash},
                                                 {"unfused", AttentionKernel::unfused}};
  return k;
}
std::span<const Named<ContextExchange>> names_of(ContextExchange) {
  static constexpr Named<ContextExchange> k[] = {{"ring", ContextExchange::ring},
                                                 {"all_gather", ContextExchange::all_gather},
                                                 {"all_to_all", ContextExchange::all_to_all}};
  return k;
}
std::span<const Named<OptimizerKind>> names_of(OptimizerKind) {
  static constexpr Named<OptimizerKind> k[] = {{"adam", OptimizerKind::adam}, {"sgd", OptimizerKind::sgd}};
  return k;
}
std::span<const Named<LossKind>> names_of(LossKind) {
  static constexpr Named<LossKind> k[] = {{"vocabulary_parallel", LossKind::vocabulary_parallel},
                                          {"full_vocabulary", LossKind::full_vocabulary}};
  return k;
}
std::span<const Named<CommHook>> names_of(CommHook) {
  static constexpr Named<CommHook> k[] = {{"none", CommHook::none},
                                          {"fp16_compress", CommHook::fp16_compress},
                                          {"bf16_compress", CommHook::bf16_compress},
                                          {"powersgd", CommHook::powersgd}};
  return k;
}
std::span<const Named<BaseWeights>> names_of(BaseWeights) {
  static constexpr Named<BaseWeights> k[] = {{"plain", BaseWeights::plain}, {"nf4", BaseWeights::nf4}};
  return k;
}
std::span<const Named<Fp8Recipe>> names_of(Fp8Recipe) {
  static constexpr Named<Fp8Recipe> k[] = {
      {"delayed", Fp8Recipe::delayed}, {"current", Fp8Recipe::current}, {"block", Fp8Recipe::block}};
  return k;
}
std::span<const Named<NormKernel>> names_of(NormKernel) {
  static constexpr Named<NormKernel> k[] = {
      {"fused", NormKernel::fused}, {"eager", NormKernel::eager}, {"eager_fp32", NormKernel::eager_fp32}};
  return k;
}
std::span<const Named<OffloadDevice>> names_of(OffloadDevice) {
  static constexpr Named<OffloadDevice> k[] = {
      {"none", OffloadDevice::none}, {"cpu", OffloadDevice::cpu}, {"nvme", OffloadDevice::nvme}};
  return k;
}
std::span<const Named<Dispatcher>> names_of(Dispatcher) {
  static constexpr Named<Dispatcher> k[] = {{"all_to_all", Dispatcher::all_to_all}, {"flex", Dispatcher::flex}};
  return k;
}
std::span<const Named<RoutingKind>> names_of(RoutingKind) {
  static constexpr Named<RoutingKind> k[] = {{"even", RoutingKind::even}, {"top_k", RoutingKind::top_k}};
  return k;
}

}  // namespace wt
