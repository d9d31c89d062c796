#pragma once

#include <optional>
#include <string>

#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// Reads the pickle of a DCP `.metadata` file: torch's Metadata and Megatron's MCoreMetadata of
/// every generation. Nothing in it is imported or called. Unknown fields are skipped, and so are
/// the plans that Megatron keeps in all_local_plans.
///
/// The result has been checked for consistency: every dtype is known, every number fits and is not
/// negative, every chunk lies inside its tensor and has exactly one storage record, found by key
/// and offset (the index in a record is only a hint), every object has one record without an
/// offset, every file name is relative and stays inside the checkpoint, and an original shape of a
/// flattened tensor agrees with the stored one. The caller must check that chunks cover their
/// tensor (validate_coverage) and that places lie inside the files.
///
/// `file_name` names the file in messages. Throws CheckpointError naming it and the key: (corrupt)
/// for any contradiction to the above, (unsupported) for chunk transforms other than zstd, sparse
/// layouts, and unknown dtypes and storage writers.
Metadata read_dcp_metadata(ByteView pickle, const std::string& file_name = ".metadata");

/// The two readers that read_dcp_metadata uses, with the same result. The first takes half of the
/// time and of the memory, and returns an empty result for a pickle that is wrong or unusual.
std::optional<Metadata> read_metadata_rows(ByteView pickle);
Metadata read_metadata_nodes(ByteView pickle, const std::string& file_name = ".metadata");

}  // namespace dckpt
