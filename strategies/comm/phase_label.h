#pragma once

#include <string>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// What this thread is doing while it lives ("planning the save"): communicators put the innermost
/// of a thread's labels ahead of their errors, which else would name nothing but an operation.
class PhaseLabel {
 public:
  explicit PhaseLabel(std::string what);
  ~PhaseLabel();
  PhaseLabel(const PhaseLabel&) = delete;
  PhaseLabel& operator=(const PhaseLabel&) = delete;

  /// "planning the save: " + text; without a label the text.
  static std::string before(const std::string& text);

 private:
  std::string what_;
  const PhaseLabel* outer_;
};

}  // namespace dckpt
