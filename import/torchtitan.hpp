// torchtitan's configuration: sections training, parallelism, activation_checkpoint ..., from TOML or --section.key words.
// Two generations: JobConfig of TOML files, until 2026-02-23; the dataclasses of after, whose training section counts tokens
// (num_tokens_per_microbatch_per_dp_rank, max_context_length).
// Facts: torchtitan b5bcd76c torchtitan/config/*, distributed/parallel_dims.py, models/*/parallelize.py.
#pragma once

#include <string_view>

#include "import/keys.hpp"

namespace wt::import {

inline constexpr std::string_view kTorchtitanVersion = "torchtitan JobConfig (until 2026-02-23)";
inline constexpr std::string_view kTorchtitanNewVersion = "torchtitan b5bcd76c (2026-08-21)";

/// `whole`: a file, in which what is absent takes the framework's default; else words that add to one.
void read_torchtitan_sections(Keys& root, bool whole);

}  // namespace wt::import
