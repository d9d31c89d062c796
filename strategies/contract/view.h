#pragma once

#include <memory>

#include "mapping/base/api.h"
#include "mapping/base/finding.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// A checkpoint as another reader shows it, and the findings about that.
struct View {
  std::unique_ptr<CheckpointReader> reader;
  Findings findings{};
};

}  // namespace dckpt
