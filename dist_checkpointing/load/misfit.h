#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {

/// Something that is stored in another form than requested. Printed as "WHAT 'KEY': ADVICE".
struct Misfit {
  /// "dtype mismatch for loaded (float32) and expected (bfloat16) tensor for key".
  std::string what;
  std::string key;
  std::string advice{};
};

/// Whether the global shape of a key may differ from the stored one.
bool shape_mismatch_allowed(const ShardedTensor& shard, const LoadOptions& options);

/// "12 do not divide by 5 ranks: ShardedTensor::from_box describes parts of 3 and of 2; " if a
/// shard is one of equal parts of a whole that is not a multiple of their number. Else empty.
std::string advice_for_uneven(const ShardedTensor& shard, ShapeView stored);

/// Why a stored tensor does not match the requested shard: its dtype, its shape; in PyTorch's words
/// for a plain DCP directory, otherwise in Megatron's.
std::vector<Misfit> misfits_of_shard(const ShardedTensor& shard,
                                     const TensorStorageMetadata& stored,
                                     const LoadOptions& options, bool is_dcp);

/// The same for a stored object; one that is missing in its grid is not a misfit.
std::optional<Misfit> misfit_of(const ShardedObject& object, const StoredKeys& keys,
                                const LoadOptions& options);

/// A line, beginning with "\n  ", for all that say the same about keys that differ only in numbers.
std::string table_of(std::span<const Misfit> misfits);

std::string to_string(const Misfit& misfit);

}  // namespace dckpt
