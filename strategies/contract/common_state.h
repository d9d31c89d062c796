#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/policy/conventions.h"
#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "strategies/storage/storage.h"

// The common state is the state that is not sharded. Megatron up to 0.18 (torch_dist and zarr)
// stores it in a torch file, from 0.19 on in an object. Plain DCP has no common state, since every
// value is stored under its path; an object with Megatron's key is nevertheless taken for one.

namespace DCKPT_API dckpt {

inline constexpr const char* kCommonFile = "common.pt";
inline constexpr const char* kCommonKey = "common_state";                 ///< key of the object
inline constexpr const char* kCommonStateKey = "common_state/shard_0_1";  ///< its unique key
/// The entry with SaveHooks::content_metadata, as in Megatron-Core from 0.13 on.
inline constexpr const char* kContentMetadataKey = "content_metadata";

/// The common state that a strategy stores: a dict, and its bytes as torch.save writes them.
class CommonState {
 public:
  explicit CommonState(Value value);
  /// `archive` is the content of the torch file that the value was read from, so that its bytes are
  /// stored unchanged.
  CommonState(Value value, Bytes archive)
      : value_(std::move(value)), archive_(std::move(archive)) {}

  const Value& value() const noexcept { return value_; }
  const Bytes& archive() const noexcept { return archive_; }

 private:
  Value value_;
  Bytes archive_;
};

enum class CommonForm : std::uint8_t {
  kFile,    ///< write_index() of a strategy gets it
  kObject,  ///< it is one of the items
};
/// Returns how a save stores the common state, if there is one.
CommonForm common_form(Compat compat) noexcept;

/// Returns the bytes of an object, such as the common state, as these conventions store it: in a
/// list or as it is.
[[nodiscard]] Bytes stored_object(const Value& value, const Conventions& conventions);
/// Returns the value in a list of one, or any other value as it is.
[[nodiscard]] Value unwrap_object(const Value& stored);

/// The object with the common state, and its former position among the objects.
struct CommonObject {
  BytesStorageMetadata object;
  std::size_t position = 0;
};
/// Removes the object with the common state from the others; empty if there is none.
[[nodiscard]] std::optional<CommonObject> take_common_object(Metadata& metadata);

/// Removes the objects that are copies of values of the common state (Metadata::common_paths, which
/// is empty afterwards), and returns them.
[[nodiscard]] std::vector<BytesStorageMetadata> take_common_values(Metadata& metadata);

/// Reads the common state from a torch file. Throws CheckpointError (corrupt) unless it is a dict.
[[nodiscard]] Value read_common_file(const ReadableFile& file);
/// Returns `common` if it is a dict; throws CheckpointError (corrupt) otherwise.
[[nodiscard]] Value require_dict(Value common);

}  // namespace dckpt
