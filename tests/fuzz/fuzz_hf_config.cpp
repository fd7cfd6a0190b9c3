// Any bytes as a Hugging Face config.json: a model or diagnostics, never an exception, an abort or a hang. What is read
// must pass the strict reader of model files.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/spec/hf_config.hpp"
#include "core/spec/read.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const wt::Result<wt::ImportedModel> r = wt::parse_hf_config(text, "folder/config.json");
  if (!r.ok()) {
    for (const wt::Diagnostic& d : r.errors())
      if (d.what.empty() || d.where.find("config.json") == std::string::npos) std::abort();
    return 0;
  }
  const wt::ModelSpec& m = r.value().model;
  if (wt::count_parameters(m).total() <= 0 || wt::active_parameters(m) <= 0) std::abort();
  const wt::Result<wt::ModelSpec> again = wt::parse_model(wt::print_model(m), "again.yaml");
  if (!again.ok() || !(again.value() == m)) std::abort();
  return 0;
}
