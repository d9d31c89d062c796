#pragma once

#include <string>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Labels what this thread is doing during the lifetime of the object ("planning the save").
/// Communicators put the innermost label of a thread ahead of their errors, which would otherwise
/// name only an operation.
class PhaseLabel {
 public:
  explicit PhaseLabel(std::string what);
  ~PhaseLabel();
  PhaseLabel(const PhaseLabel&) = delete;
  PhaseLabel& operator=(const PhaseLabel&) = delete;

  /// Returns "planning the save: " + text; without a label the text.
  static std::string before(const std::string& text);
  /// Returns the text of an error without "planning the save: ", for a text that says so itself.
  static std::string removed(const std::string& what, const std::string& text);
  /// Does the same with the label of this thread.
  static std::string removed(const std::string& text);

 private:
  std::string what_;
  const PhaseLabel* outer_;
};

}  // namespace dckpt
