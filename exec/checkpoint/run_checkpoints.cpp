#include "exec/checkpoint/run_checkpoints.hpp"

#include "core/plan/plan_io.hpp"

namespace wt::exec {

Result<std::optional<Loaded>> RunCheckpoints::begin(Executor& e) {
  if (options_.root.empty()) return std::optional<Loaded>();
  holdings_ = holdings_of(e);
  digest_ = plan::digest(e.plan());
  const Team team = Team::of(*e.machine().communicator);
  saver_.emplace(SaverOptions{options_.root, options_.keep, options_.asynchronous}, team, *e.machine().device);
  if (!options_.resume) return std::optional<Loaded>();
  auto loaded = load_newest(options_.root, holdings_, team, *e.machine().device);
  if (loaded && loaded.value()) {
    continue_from(e, loaded.value()->progress);
    saved_ = e.state().step;
  }
  return loaded;
}

Status RunCheckpoints::save(Executor& e) {
  saved_ = e.state().step;
  return saver_->save({digest_, progress_of(e), holdings_});
}

Status RunCheckpoints::stepped(Executor& e) {
  if (!saver_ || options_.every <= 0 || e.state().step % options_.every != 0) return ok_status();
  return save(e);
}

Status RunCheckpoints::end(Executor& e) {
  if (!saver_) return ok_status();
  if (saved_ != e.state().step)
    if (auto s = save(e); !s) return s;
  return saver_->finish();
}

}  // namespace wt::exec
