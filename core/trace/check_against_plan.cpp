// Whether a trace belongs to a plan: what exports and reports rely on.
#include "core/trace/file.hpp"

namespace wt::trace {

Status check_against_plan(const Trace& trace, const plan::Plan& plan) {
  const int64_t world = plan.mesh.ranks();
  for (const RankSpans& r : trace.ranks) {
    auto fail = [&](std::string what) {
      return Diagnostic{fmt::format("trace: rank {}, step {}", r.rank, r.step), std::move(what),
                        "the trace and the plan do not belong together, or the run was cut"};
    };
    if (int64_t{r.rank} >= world) return fail(fmt::format("the plan has {} ranks", world));
    const plan::Program& program = plan.programs[program_of(plan, RankId{r.rank}).v];
    // Which variant of the step ran is not stored: the one whose length fits.
    bool fits = false;
    for (const plan::StepOrder& variant : program.steps) {
      size_t n = 0;
      for (const plan::Invocation& i : variant.order) n += static_cast<size_t>(plan.block(i.block).op_instances());
      if (n != r.spans.size()) continue;
      size_t k = 0;
      bool same = true;
      for (uint32_t i = 0; i < variant.order.size() && same; ++i) {
        const auto ops = static_cast<uint32_t>(plan.block(variant.order[i].block).op_instances());
        for (uint32_t o = 0; o < ops && same; ++o, ++k) same = r.spans[k].invocation == i && r.spans[k].op == o;
      }
      fits |= same;
      if (fits) break;
    }
    if (!fits) return fail(fmt::format("{} spans do not match any step of program '{}'", r.spans.size(), program.name));
  }
  return ok_status();
}

}  // namespace wt::trace
