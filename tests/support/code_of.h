#pragma once

#include <functional>
#include <string>

#include "mapping/base/error.h"

namespace dckpt {

/// Returns the code of the CheckpointError that `work` throws.
inline std::string code_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const CheckpointError& error) {
    return to_string(error.code());
  }
  return "no error";
}

}  // namespace dckpt
