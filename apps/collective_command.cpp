// windtunnel collective: time and bandwidth of one collective over sizes on a cluster, to be laid beside an nccl-tests log.
#include <fmt/format.h>

#include <algorithm>

#include "apps/command.hpp"
#include "core/base/text.hpp"
#include "core/spec/names.hpp"
#include "core/spec/read.hpp"
#include "study/collective_table.hpp"

namespace wt::apps {

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 40;

struct Options {
  std::string op = "all_reduce", cluster, bytes = "8..8G", dtype = "fp32", algorithm, protocol;
  int64_t gpus = 0, per_node = 0, nodes = 0;
  bool no_nvls = false, json = false, csv = false;
};

/// "8", "64K", "1M", "8G": powers of 1024, as nccl-tests reads them.
std::optional<int64_t> size_of_text(std::string_view text) {
  int64_t unit = 1;
  if (!text.empty()) {
    constexpr std::string_view kUnits = "KMGT";
    if (const size_t u = kUnits.find(text.back()); u != kUnits.npos) {
      unit = int64_t{1} << (10 * (u + 1));
      text.remove_suffix(1);
    }
  }
  const auto n = parse_int(text);
  if (!n || *n < 1 || *n > kMostBytes / unit) return {};
  return *n * unit;
}

Result<std::vector<int64_t>> sizes_of(const std::string& text) {
  if (auto sizes = read_sizes(text, size_of_text)) return std::move(*sizes);
  return Diagnostic{"--bytes", fmt::format("'{}' is no list of sizes up to 1T", text), "8..8G (doubling), or 1M,64M"};
}

constexpr std::pair<std::string_view, DType> kTypes[] = {
    {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp8", DType::f8}};

template <class E>
std::optional<E> by_name(const std::string& name, int count) {
  for (int i = 0; i < count; ++i)
    if (sim::to_text(static_cast<E>(i)) == name) return static_cast<E>(i);
  return {};
}
constexpr int kAlgorithms = static_cast<int>(sim::Algorithm::pairwise) + 1, kProtocols = 3;

int run(const Options& o) {
  auto sizes = sizes_of(o.bytes);
  auto cluster = read_cluster(o.cluster);
  Diagnostics faults;
  if (!sizes) faults = sizes.errors();
  if (!cluster) faults.insert(faults.end(), cluster.errors().begin(), cluster.errors().end());
  if (!faults.empty()) return fail(faults, kBadInput);
  ClusterSpec& c = cluster.value();
  study::CollectiveQuestion q;
  for (const study::TableOp& op : study::table_ops())
    if (op.name == o.op) q.op = op;
  for (const auto& [name, dtype] : kTypes)
    if (name == o.dtype) q.dtype = dtype;
  q.per_node = o.per_node;
  const int64_t per_node = std::max<int64_t>(1, std::min(o.per_node > 0 ? o.per_node : c.node.devices, c.node.devices));
  if (o.nodes > 0)
    c.nodes = o.nodes;
  else if (o.gpus > 0)
    c.nodes = std::max(c.nodes, (o.gpus + per_node - 1) / per_node);
  q.gpus = o.gpus > 0 ? o.gpus : c.nodes * per_node;
  q.bytes = std::move(sizes.value());
  q.nccl.algorithm = by_name<sim::Algorithm>(o.algorithm, kAlgorithms);
  q.nccl.protocol = by_name<sim::Protocol>(o.protocol, kProtocols);
  q.nccl.nvls = !o.no_nvls;
  auto table = study::collective_table(c, q);
  if (!table) return fail(table.errors(), kBadInput);
  return write_out(o.json  ? study::print_collective_json(table.value(), c, q)
                   : o.csv ? study::print_collective_csv(table.value())
                           : study::print_collective_screen(table.value(), c, q));
}

template <class E>
std::vector<std::string> names(int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.emplace_back(sim::to_text(static_cast<E>(i)));
  return out;
}

const Register registration(55, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("collective", "time of one collective over sizes, as nccl-tests prints it");
  std::vector<std::string> ops, types;
  for (const study::TableOp& op : study::table_ops()) ops.emplace_back(op.name);
  for (const auto& [name, dtype] : kTypes) types.emplace_back(name);
  app->add_option("--op", o->op, "what is done")->check(CLI::IsMember(ops))->type_name("OP")->capture_default_str();
  app->add_option("--cluster", o->cluster, "a built-in cluster or a file")->required()->type_name("NAME");
  app->add_option("--gpus", o->gpus, "GPUs that take part, node by node (default: all)")
      ->check(count_to(int64_t{1} << 20))
      ->type_name("N");
  app->add_option("--per-node", o->per_node, "GPUs of each node that take part (default: all)")
      ->check(count_to(1024))
      ->type_name("N");
  app->add_option("--nodes", o->nodes, "nodes of the cluster (default: as many as the GPUs need)")
      ->check(count_to(int64_t{1} << 20))
      ->type_name("N");
  app->add_option("--bytes", o->bytes, "FIRST..LAST doubles, or a list; K, M, G are powers of 1024")
      ->type_name("SIZES")
      ->capture_default_str();
  app->add_option("--dtype", o->dtype, "of the elements")
      ->check(CLI::IsMember(types))
      ->type_name("T")
      ->capture_default_str();
  app->add_option("--algo", o->algorithm, "as NCCL_ALGO: where it can run the collective; default: NCCL's choice")
      ->check(CLI::IsMember(names<sim::Algorithm>(kAlgorithms)))
      ->type_name("NAME");
  app->add_option("--proto", o->protocol, "as NCCL_PROTO")
      ->check(CLI::IsMember(names<sim::Protocol>(kProtocols)))
      ->type_name("NAME");
  app->add_flag("--no-nvls", o->no_nvls, "as NCCL_NVLS_ENABLE=0");
  auto* json = app->add_flag("--json", o->json, "rows as JSON");
  app->add_flag("--csv", o->csv, "a row for each size")->excludes(json);
  app->footer(
      "Examples:\n"
      "  windtunnel collective --cluster dgx-h100 --gpus 64\n"
      "  windtunnel collective --op alltoall --cluster dgx-a100-80 --gpus 16 --bytes 1M..1G --json");
  app->callback([o, &exit] { exit = run(*o); });
});

}  // namespace

}  // namespace wt::apps
