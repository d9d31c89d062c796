#pragma once

#include <optional>

#include "mapping/planning/metadata.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {

/// The description that a directory of torch_dist or plain DCP gives of itself.
struct TorchDistDirectory {
  CheckpointInfo info;
  Metadata metadata;
  std::optional<BytesStorageMetadata> common_object;  ///< takes the place of common.pt
};

/// Reads metadata.json and .metadata and looks for the common state. Throws CheckpointError
/// (incomplete) for a missing file, (corrupt) or (unsupported) for its content.
TorchDistDirectory read_torch_dist_directory(const Storage& storage,
                                             const TorchDistReadOptions& options);

}  // namespace dckpt
