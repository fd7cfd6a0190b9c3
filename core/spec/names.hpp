// Spelling of every choice in the specs, once: readers, printers and reports use the same words.
#pragma once

#include <span>
#include <string_view>

#include "core/spec/specs.hpp"

namespace wt {

template <class E>
struct Named {
  std::string_view name;
  E value;
};

/// The table of E: the first row of a value is the one printed, further rows are only read.
std::span<const Named<Activation>> names_of(Activation);
std::span<const Named<Norm>> names_of(Norm);
std::span<const Named<Position>> names_of(Position);
std::span<const Named<GpuGeneration>> names_of(GpuGeneration);
std::span<const Named<ScaleUpKind>> names_of(ScaleUpKind);
std::span<const Named<FabricKind>> names_of(FabricKind);
std::span<const Named<TransferKind>> names_of(TransferKind);
std::span<const Named<DataParallel>> names_of(DataParallel);
std::span<const Named<GradientCopies>> names_of(GradientCopies);
std::span<const Named<ShardingKind>> names_of(ShardingKind);
std::span<const Named<BackwardPrefetch>> names_of(BackwardPrefetch);
std::span<const Named<WrapKind>> names_of(WrapKind);
std::span<const Named<RecomputeKind>> names_of(RecomputeKind);
std::span<const Named<RecomputeMethod>> names_of(RecomputeMethod);
std::span<const Named<AttentionKernel>> names_of(AttentionKernel);
std::span<const Named<ContextExchange>> names_of(ContextExchange);
std::span<const Named<OptimizerKind>> names_of(OptimizerKind);
std::span<const Named<LossKind>> names_of(LossKind);
std::span<const Named<NormKernel>> names_of(NormKernel);
std::span<const Named<CommHook>> names_of(CommHook);
std::span<const Named<BaseWeights>> names_of(BaseWeights);
std::span<const Named<Fp8Recipe>> names_of(Fp8Recipe);
std::span<const Named<OffloadDevice>> names_of(OffloadDevice);
std::span<const Named<Dispatcher>> names_of(Dispatcher);
std::span<const Named<RoutingKind>> names_of(RoutingKind);

/// As the files and the options spell a number format: fp16 rather than the plan's f16. For everything a user reads.
std::string_view spelled(DType);

template <class E>
requires requires(E e) { names_of(e); }
std::string_view to_text(E value) {
  for (const auto& row : names_of(value))
    if (row.value == value) return row.name;
  return "?";
}

}  // namespace wt
