// Strict readers and printers of the specs: YAML in, values or *all* faults out.
// Not tolerant: unknown, duplicate, missing keys, wrong types, values out of range and bare numbers where a unit belongs
// are faults, each with file:line:column, key, and what would be right. A `--set` of the command line is checked exactly
// like the file. Not a judge of whether the parts fit together: that is lowering.
// Invariant: parse_x(print_x(spec)) == spec. No exception leaves this file.
//
// A value of model, cluster or cluster.device is
//   a name        llama3-70b        a built-in (core/spec/data_dir.hpp)
//   a path        my/model.yaml     relative to the file that says it; a model may be a Hugging Face config.json
//   a map         {layers: 12, ...} everything written out
//   a map with    {from: llama3-70b, layers: 12}: the named one with these keys replaced; nests, in spec files too
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt {

/// `warnings`, where given, receives what the file says that has no effect here (Hugging Face keys).
Result<ModelSpec> read_model(const std::string& name_or_path, std::vector<std::string>* warnings = nullptr);
Result<ClusterSpec> read_cluster(const std::string& name_or_path);
Result<DeviceSpec> read_device(const std::string& name_or_path);

/// `overrides` are texts like "strategy.tensor=4", "cluster.nodes=16", "cluster=dgx-a100-80",
/// "cluster.fabric.nic_bandwidth=25 GB/s", "model.layers=12", applied in order. "cluster=X" keeps the `nodes` of the
/// file; paths in an override are relative to the working directory. Warnings are in JobSpec::warnings. A job with the key
/// `framework` has that framework's defaults (core/spec/frameworks.hpp), listed in JobSpec::assumptions.
Result<JobSpec> read_job(const std::string& path, std::span<const std::string> overrides = {});

/// From text; `file` names it in diagnostics, and relative paths in it are relative to its directory.
Result<ModelSpec> parse_model(std::string_view text, const std::string& file);
Result<ClusterSpec> parse_cluster(std::string_view text, const std::string& file);
Result<DeviceSpec> parse_device(std::string_view text, const std::string& file);
Result<JobSpec> parse_job(std::string_view text, const std::string& file, std::span<const std::string> overrides = {});
Result<StrategySpec> parse_strategy(std::string_view text, const std::string& file);
Result<TrainingSpec> parse_training(std::string_view text, const std::string& file);

/// YAML that reads back equal; every key that has a value, with units, nothing by reference.
std::string print_model(const ModelSpec&);
std::string print_device(const DeviceSpec&);
std::string print_cluster(const ClusterSpec&);
std::string print_strategy(const StrategySpec&);
std::string print_training(const TrainingSpec&);
std::string print_job(const JobSpec&);

}  // namespace wt
