#pragma once

#include <string>
#include <vector>

#include "operations/convert/convert_target.h"
#include "operations/convert/copy_contents.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/view.h"

namespace dckpt {

/// Adds the source's common state to the contents, in the form that the target uses. Bytes are
/// carried over unchanged if both use the same form, compared with their checksums if `check`.
/// Plain values that a DCP directory stores under their paths are common state in Megatron's terms:
/// they become part of it, and objects again on the way back. The findings report changes of form.
/// Throws CheckpointError.
CopyContents with_common_state(CopyContents contents, const CheckpointReader& source,
                               const ChosenTarget& target, bool check);

/// Removes from `exclude` the patterns that match no key of the checkpoint but entries of its
/// common state (by dotted path), and shows the checkpoint without these entries.
View without_common_entries(std::unique_ptr<CheckpointReader> reader,
                            std::vector<std::string>& exclude);

}  // namespace dckpt
