// The families of Hugging Face architectures that can be read, by model_type.
#pragma once

#include <span>
#include <string_view>

#include "core/spec/hf_keys.hpp"

namespace wt::hf {

struct Family {
  std::string_view type;        // model_type
  std::string_view class_name;  // what `architectures` starts with
  void (*read)(Config&, ModelSpec&);
};

/// Sorted by type.
std::span<const Family> families();

}  // namespace wt::hf
