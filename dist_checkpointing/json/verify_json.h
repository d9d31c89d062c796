#pragma once

#include <string>
#include <vector>

#include "dist_checkpointing/inspect/verify.h"
#include "dist_checkpointing/training_root/latest.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The checkpoints of a training root, verified, and what a run that starts there takes.
struct RootVerification {
  struct Checkpoint {
    std::string path;
    VerifyReport report;  ///< of one that cannot be opened, this error alone
  };
  std::vector<Checkpoint> checkpoints{};  ///< the oldest first
  LatestChoice resume{};
  bool deep = false;  ///< as VerifyOptions::deep of all of them
};

}  // namespace dckpt
