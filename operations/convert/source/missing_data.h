#pragma once

#include <string>
#include <vector>

#include "operations/convert/copy_contents.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Removes from `contents` the tensors and objects that have lost bytes, because data files are
/// missing or too short, and adds their keys to `lost_keys` and a finding. Looks at the files'
/// sizes only. Throws CheckpointError (incomplete), naming the files and the keys with the lost
/// share of each, unless `allow_partial`, or if the common state is lost.
CopyContents without_lost_data(CopyContents contents, const CheckpointReader& source,
                               bool allow_partial, std::vector<std::string>& lost_keys);

}  // namespace dckpt
