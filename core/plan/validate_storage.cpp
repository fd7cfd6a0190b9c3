#include "core/plan/validate_passes.hpp"
namespace wt::plan { void check_storage(const Plan&, Faults&) {} }
