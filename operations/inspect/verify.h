#pragma once

#include "dist_checkpointing/verify/check_stored.h"
#include "mapping/base/api.h"
#include "mapping/base/progress.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

struct VerifyOptions {
  bool deep = false;  ///< as StoredCheck::deep
  /// Also reads every element of tensors and reports those that are NaN or infinite.
  bool nan = false;
  int threads = 2;
  Progress progress{};  ///< progress of the deep part, then of the search for NaN
};

/// Does what check_stored() does, and searches for NaN on request. Throws only for reasons outside
/// the checkpoint (out of memory).
[[nodiscard]] VerifyReport verify(const CheckpointReader& reader,
                                  const VerifyOptions& options = {});

/// Does the same with the ranks of a job, as check_stored() does. Collective.
[[nodiscard]] VerifyReport verify(const CheckpointReader& reader, const VerifyOptions& options,
                                  Communicator& comm);

}  // namespace dckpt
