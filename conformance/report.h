#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The findings of a conformance check: one line per problem, none if the code conforms.
struct ConformanceReport {
  int checks = 0;
  std::vector<std::string> problems;
};

}  // namespace dckpt
