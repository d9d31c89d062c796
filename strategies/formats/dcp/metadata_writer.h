#pragma once

#include <cstdint>

#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// Returns the pickle (protocol 4) of a DCP `.metadata` file, as torch's own classes would pickle
/// it: Metadata, with the attribute `mcore_data` if `has_mcore_data` is set, `dckpt_common_paths`
/// for common_paths and `dckpt_crc32` for StorageInfo::crc, which every reader from torch 2.3 and
/// Megatron-Core 0.6 on loads. Chunks and places of each tensor must be complete. `common_crc` is
/// that of the common.pt written beside it, 0 if there is none; that in `metadata` belongs to the
/// file that was read with it. Throws CheckpointError (invalid argument) for metadata without
/// places.
Bytes write_dcp_metadata(const Metadata& metadata, std::uint32_t common_crc = 0);

}  // namespace dckpt
