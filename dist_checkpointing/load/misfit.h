#pragma once

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/base/fields.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {

/// A key that is stored in another form than requested. It is printed as "WHAT 'KEY': ADVICE".
struct Misfit {
  /// "dtype mismatch for loaded (float32) and expected (bfloat16) tensor for key".
  std::string what;
  std::string key;
  std::string advice{};
};
constexpr auto fields(const Misfit*) {
  return std::tuple(Field(&Misfit::what), Field(&Misfit::key), Field(&Misfit::advice));
}

/// Returns whether the global shape of a key may differ from the stored one.
bool shape_mismatch_allowed(const ShardedTensor& shard, const LoadOptions& options);

/// Returns "12 do not divide by 5 ranks: ShardedTensor::from_box describes parts of 3 and of 2; "
/// if a shard is one of equal parts of a whole that is not a multiple of their number, else "".
std::string advice_for_uneven(const ShardedTensor& shard, ShapeView stored);

/// Returns the reasons why a stored tensor does not match the requested shard: its dtype, its
/// shape. The words are PyTorch's for a plain DCP directory, otherwise Megatron's.
std::vector<Misfit> misfits_of_shard(const ShardedTensor& shard,
                                     const TensorStorageMetadata& stored,
                                     const LoadOptions& options, bool is_dcp);

/// Returns the same for a stored object. An object that is missing in its grid is not a misfit.
std::optional<Misfit> misfit_of(const ShardedObject& object, const StoredKeys& keys,
                                const LoadOptions& options);

/// Returns one line, beginning with "\n  ", per group of misfits that say the same about keys that
/// differ only in numbers.
std::string table_of(std::span<const Misfit> misfits);

std::string to_string(const Misfit& misfit);

}  // namespace dckpt
