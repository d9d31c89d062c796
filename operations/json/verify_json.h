#pragma once

#include <string>
#include <vector>

#include "dist_checkpointing/training_root/latest.h"
#include "mapping/base/api.h"
#include "operations/inspect/verify.h"

namespace DCKPT_API dckpt {

/// The verified checkpoints of a training root, and the one that a run starting there takes.
struct RootVerification {
  struct Checkpoint {
    std::string path;
    VerifyReport report;  ///< only the error, if the checkpoint cannot be opened
  };
  std::vector<Checkpoint> checkpoints{};  ///< oldest first
  LatestChoice resume{};
  bool deep = false;  ///< VerifyOptions::deep, the same for all
};

}  // namespace dckpt
