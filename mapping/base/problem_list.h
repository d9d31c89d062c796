#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "mapping/base/error.h"

namespace dckpt {

/// Problems, collected so that one error reports them all.
class ProblemList {
 public:
  /// The number of problems that are listed at most; the message then says how many more there are.
  static constexpr std::size_t kShown = 20;

  /// Adds a line, without its newline. Text from outside must be quoted.
  void add(std::string line);

  bool empty() const noexcept { return count_ == 0; }

  /// Throws CheckpointError with `what` as its first line and a line for each problem. Does nothing
  /// if there is none.
  void raise_if_any(ErrorCode code, const std::string& what) const;

 private:
  std::vector<std::string> lines_;
  std::size_t count_ = 0;
};

}  // namespace dckpt
