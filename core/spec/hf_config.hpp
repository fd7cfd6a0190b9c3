// Hugging Face config.json -> ModelSpec, with the class defaults of transformers for keys the file leaves out.
// Not a guess: an unknown model_type is refused with the list of what would be needed.
// Lives in core/spec because a job may name such a file where a model is wanted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt {

struct ImportedModel {
  ModelSpec model;
  std::vector<std::string> warnings;  // keys that have no effect here, or that were read in a way worth knowing
};

/// `file` names the text in diagnostics and gives the model its name (the folder's, if the file is config.json).
Result<ImportedModel> parse_hf_config(std::string_view text, const std::string& file);
Result<ImportedModel> read_hf_config(const std::string& path);

/// The model_types that can be read, sorted.
std::vector<std::string> hf_model_types();

}  // namespace wt
