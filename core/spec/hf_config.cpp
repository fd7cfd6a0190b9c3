#include "core/spec/hf_config.hpp"

namespace wt {
Result<ImportedModel> parse_hf_config(std::string_view, const std::string& file) {
  return Diagnostic{file, "Hugging Face files are not read yet", ""};
}
}  // namespace wt
