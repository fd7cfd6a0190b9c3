// Files that people bring and that describe no training step: known by what is in them, refused with the reason and with the
// command that takes them, where there is one.
#include <fmt/format.h>

#include "import/format.hpp"

namespace wt::import {

namespace {

struct Kind {
  const char* what;
  const char* where_to;
  bool (*is)(const Foreign&);
};

bool holds(const Foreign& f, std::string_view text) {
  return f.text.substr(0, size_t{1} << 16).find(text) != std::string_view::npos;
}

constexpr Kind kKinds[] = {
    {"a search space of NeMo's auto-configurator, not one run", "give one of the configurations that it wrote",
     [](const Foreign& f) { return f.has("train_settings"); }},
    {"a MaxText configuration: its degrees and defaults are in base.yml, which it names, and its programs are XLA's, "
     "whose collectives no plan has",
     "give model, strategy and batch with --model and --set",
     [](const Foreign& f) {
       return f.has("base_config") || (f.has("per_device_batch_size") && f.has("remat_policy"));
     }},
    {"hardware figures of Primus, not a training", "write them as a cluster: cluster_specs/ has examples",
     [](const Foreign& f) { return f.has("hardware_config"); }},
    {"a table of workloads of NVIDIA's DGX Cloud benchmarking, not one run",
     "give the recipe that its launch script runs",
     [](const Foreign& f) { return f.has("run") && f.has("general") && f.has("container"); }},
    {"values of Horovod's Helm chart: how many workers and which image; the training is in the image",
     "give its launch line (horovodrun) or script",
     [](const Foreign& f) { return f.has("worker") && f.has("driver"); }},
    {"a network of ASTRA-sim", "write it as a cluster: cluster_specs/ has examples",
     [](const Foreign& f) { return f.has("npus_count") && f.has("topology"); }},
    {"a system of ASTRA-sim: which collectives it uses", "collectives are chosen as NCCL does; nothing to import",
     [](const Foreign& f) { return f.has("all-reduce-implementation") || f.has("scheduling-policy"); }},
    {"a hardware description of Calculon", "write it as a cluster: cluster_specs/ has examples",
     [](const Foreign& f) { return f.has("matrix") && f.has("mem1"); }},
    {"an execution of Calculon: degrees and batch without a model",
     "the keys are plain: --set strategy.tensor=4 and so on",
     [](const Foreign& f) { return f.has("num_procs") && f.has("tensor_par"); }},
    {"a GPU of llm-analysis", "write it as a device: cluster_specs/devices has examples",
     [](const Foreign& f) { return f.has("mem_per_GPU_in_GB"); }},
    {"a model of llm-analysis: no word on biases, gating or tying, from which sizes follow",
     "--model with the config.json of that model",
     [](const Foreign& f) { return f.has("num_layers") && f.has("n_head") && f.has("hidden_dim"); }},
    {"a model of SimuMax", "--model with the config.json of that model",
     [](const Foreign& f) { return f.has("layer_num") && f.has("head_num"); }},
    {"a strategy of SimuMax: degrees without a model", "the keys are plain: --set strategy.tensor=4 and so on",
     [](const Foreign& f) { return f.has("micro_batch_num") && f.has("pp_size"); }},
    {"a workload of SimAI or ASTRA-sim: layers with times and collectives already counted",
     "give the training's own configuration",
     [](const Foreign& f) {
       return f.syntax == Foreign::Syntax::text &&
              (holds(f, "model_parallel_NPU_group:") || holds(f, "HYBRID_TRANSFORMER"));
     }},
    {"a log of nccl-tests: measured collectives",
     "`windtunnel collective` predicts such a table, to lay beside it; none is read",
     [](const Foreign& f) { return f.syntax == Foreign::Syntax::text && holds(f, "nThread") && holds(f, "minBytes"); }},
    {"a topology of NCCL", "the cluster's own description says it: cluster_specs/",
     [](const Foreign& f) {
       return f.text.substr(0, 4096).find("<system version") != std::string_view::npos ||
              f.text.substr(0, 4096).find("<graphs version") != std::string_view::npos;
     }},
    {"a map of an InfiniBand network", "the cluster's own description says it: cluster_specs/",
     [](const Foreign& f) { return holds(f, "vendid=") && holds(f, "switchguid="); }},
    {"Python: its configuration is what its code makes when it runs", "give the file or the log that the run wrote",
     [](const Foreign& f) { return f.base().ends_with(".py"); }},
    {"compressed", "unpack it first: gunzip, tar; `windtunnel diff` takes a profiler's .json.gz as it is",
     [](const Foreign& f) { return f.text.starts_with("\x1f\x8b"); }},
    {"an execution trace of Chakra: what ran, not what is to run", "give the training's own configuration",
     [](const Foreign& f) { return f.base().ends_with(".et"); }},
    {"a trace of PyTorch's profiler: what ran, not what is to run",
     "`windtunnel diff JOB FILE` lays it beside a prediction; here give the training's own configuration",
     [](const Foreign& f) {
       return f.has("traceEvents") || (f.syntax == Foreign::Syntax::json &&
                                       f.text.substr(0, 4096).find("\"deviceProperties\"") != std::string_view::npos);
     }},
};

const Kind* kind_of(const Foreign& f) {
  for (const Kind& k : kKinds)
    if (k.is(f)) return &k;
  return nullptr;
}

int recognise(const Foreign& f) { return kind_of(f) ? 2 : 0; }

void read(const Foreign& f, Draft& d) {
  const Kind* k = kind_of(f);
  d.error({f.name, ""}, k ? fmt::format("is {}", k->what) : "describes no training", k ? k->where_to : "");
}

}  // namespace

extern const Format formats_not_a_training;
const Format formats_not_a_training = {"not_a_training", "refused by name",
                                       "files that describe no training step, with where they belong", recognise, read};

}  // namespace wt::import
