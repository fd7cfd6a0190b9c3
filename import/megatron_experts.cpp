// Megatron-LM's arguments of layers of experts: how tokens reach them and what is beside the exchange. The sizes are the
// model's (megatron_model.cpp), the degrees are read with the others.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "import/megatron.hpp"

namespace wt::import {

void read_megatron_experts(MegatronArgs& a) {
  Draft& d = a.draft();
  if (a.integer("num_experts").value_or(0) <= 1) return;  // what is said of experts has no effect
  if (const auto type = a.text("moe_token_dispatcher_type")) {
    const Origin from = a.at("moe_token_dispatcher_type");
    if (*type == "alltoall" || *type == "flex")
      d.take(from, *type, "strategy.experts.dispatcher", *type == "flex" ? "flex" : "all_to_all");
    else
      d.not_carried(from, *type, "planned as the all-to-all dispatcher");
  }
  if (a.text("moe_flex_dispatcher_backend"))
    d.ignore(a.at("moe_flex_dispatcher_backend"), a.said("moe_flex_dispatcher_backend"),
             "of the flex dispatcher, whose backends are planned alike");
  if (const auto factor = a.number("moe_expert_capacity_factor"); factor && *factor > 0) {
    const std::string why = "experts hold so many times the mean of tokens, more is dropped";
    d.take(a.at("moe_expert_capacity_factor"), a.said("moe_expert_capacity_factor"), "strategy.experts.dropless",
           "false", why);
    d.take(a.at("moe_expert_capacity_factor"), a.said("moe_expert_capacity_factor"), "strategy.experts.imbalance",
           fmt::format("{}", std::max(1.0, *factor)), why);
    if (*factor < 1)
      d.note(fmt::format("{}: a capacity below 1 drops tokens even of an even load; planned as 1",
                         a.at("moe_expert_capacity_factor").where));
  }
  if (a.on("moe_pad_expert_input_to_capacity"))
    d.ignore(a.at("moe_pad_expert_input_to_capacity"), "True", "without dropless the counts are fixed, as planned");
  for (const auto& [field, to] : {std::pair{"moe_shared_expert_overlap", "strategy.experts.shared_overlap"},
                                  {"overlap_moe_expert_parallel_comm", "strategy.experts.overlap_passes"}})
    if (a.on(field)) d.take(a.at(field), a.said(field), to, "true");
  if (a.on("moe_router_force_load_balancing"))
    d.take(a.at("moe_router_force_load_balancing"), "True", "strategy.experts.routing", "even");
}

}  // namespace wt::import
