// How long collectives, messages, copies and files take: what a step sees of them, from the end of the kernel before to the
// begin of the kernel behind, so that waking the threads between is in it. Every rank takes part at once.
#pragma once

#include <string>
#include <vector>

#include "core/spec/specs.hpp"
#include "exec/calibrate/kernels.hpp"

namespace wt::exec {

/// Collectives over groups of every size that divides the ranks, and messages, at sizes from 8 B: points only, see fit.hpp.
/// Sums are of `dtype`. Collective.
Result<std::vector<TransferCurve>> measure_transfers(const Ranks&, DType dtype, Extent);

struct StorageRates {
  BytesPerSecond host_copy;    // between host and device memory
  BytesPerSecond read, write;  // of a file; the write until it is on the disk
  Bytes free;                  // on the file system of that file
};
/// `folder`: where a file of some tens of MiB may lie for a moment. Collective; only rank 0 writes.
Result<StorageRates> measure_storage(const Ranks&, const std::string& folder, Extent);

}  // namespace wt::exec
