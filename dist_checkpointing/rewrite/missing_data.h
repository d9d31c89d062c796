#pragma once

#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/copy_contents.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Takes out of `contents` the tensors and objects of which bytes are lost, because data files are
/// missing or too short, and adds their keys to `lost_keys` and a finding. Looks at the files'
/// sizes only. Throws CheckpointError (incomplete), which names the files, and the keys with the
/// share that is lost of each: unless `allow_partial`, or if the common state is lost.
CopyContents without_lost_data(CopyContents contents, const CheckpointReader& source,
                               bool allow_partial, std::vector<std::string>& lost_keys);

}  // namespace dckpt
