#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// What a conformance check found: one line per problem, none if the code conforms.
struct ConformanceReport {
  int checks = 0;
  std::vector<std::string> problems;
};

}  // namespace dckpt
