#include "core/trace/profile.hpp"

namespace wt::trace {

std::string_view to_text(WorkClass c) {
  switch (c) {
    case WorkClass::gemm: return "gemm";
    case WorkClass::attention: return "attention";
    case WorkClass::norm: return "norm";
    case WorkClass::elementwise: return "elementwise";
    case WorkClass::embedding: return "embedding";
    case WorkClass::loss: return "loss";
    case WorkClass::routing: return "routing";
    case WorkClass::optimizer: return "optimizer";
    case WorkClass::copy: return "copy";
    case WorkClass::all_reduce: return "all_reduce";
    case WorkClass::all_gather: return "all_gather";
    case WorkClass::reduce_scatter: return "reduce_scatter";
    case WorkClass::all_to_all: return "all_to_all";
    case WorkClass::broadcast: return "broadcast";
    case WorkClass::send_receive: return "send_receive";
    case WorkClass::communication: return "communication";
    case WorkClass::other: return "other";
  }
  return "";
}

std::string_view to_text(ProfilePhase p) {
  switch (p) {
    case ProfilePhase::forward: return "forward";
    case ProfilePhase::backward: return "backward";
    case ProfilePhase::optimizer: return "optimizer";
    case ProfilePhase::outside: return "outside";
  }
  return "";
}

}  // namespace wt::trace
