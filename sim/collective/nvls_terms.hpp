// What NVLS and NVLSTree share: the rate of a reduction in the NVLink switch.
#pragma once

#include "sim/collective/algorithm.hpp"

namespace wt::sim {

/// Whether the switch reduces for this group: enough ranks of the node take part.
bool nvls_possible(const Situation&);

/// Tuner: GB/s of one head, and the heads.
struct NvlsHeads {
  double rate = 0;
  int64_t heads = 0;
};
NvlsHeads nvls_heads(const Situation&);

/// Real: GB/s of data reduced in one node. Every port sends its S to the switch (reduced on load), stores and receives
/// its share S/n of the sums and the rest by multicast: S (1 + 1/n) in each direction.
double nvls_rate(const Situation&);

}  // namespace wt::sim
