// torchtitan's train configuration in TOML. The number of GPUs is in the launch line.
#include "import/format.hpp"
#include "import/torchtitan.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::toml) return 0;
  if (f.has("training") &&
      (f.has("parallelism") || f.has("activation_checkpoint") || f.has("experimental") || f.has("metrics")))
    return 7;
  return f.has("parallelism") ? 5 : f.tree ? 0 : f.text.find("[training]") != f.text.npos ? 3 : 0;
}

void read(const Foreign& f, Draft& d) {
  const tree::Entry* training = f.tree ? f.tree->find("training") : nullptr;
  const bool fresh = training && (training->value.find("num_tokens_per_microbatch_per_dp_rank") ||
                                  training->value.find("max_context_length"));
  d.file(f.name, "torchtitan TOML", std::string(fresh ? kTorchtitanNewVersion : kTorchtitanVersion));
  if (!f.tree) {
    d.errors().insert(d.errors().end(), f.faults.begin(), f.faults.end());
    return;
  }
  Keys root(*f.tree, "", d);
  read_torchtitan_sections(root, true);
}

}  // namespace

extern const Format formats_torchtitan_toml;
const Format formats_torchtitan_toml = {"torchtitan_toml", "torchtitan TOML", "a train_config of either generation",
                                        recognise, read};

}  // namespace wt::import
