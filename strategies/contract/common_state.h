#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/conventions.h"
#include "configs/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "strategies/storage/storage.h"

// What is not sharded, and where formats keep it: Megatron up to 0.18 (torch_dist and zarr) in a
// torch file, from 0.19 on in an object. Plain DCP has no common state, as every value is stored
// under its path; an object with the key of Megatron's is taken for one nevertheless.

namespace DCKPT_API dckpt {

inline constexpr const char* kCommonFile = "common.pt";
inline constexpr const char* kCommonKey = "common_state";                 ///< of the object
inline constexpr const char* kCommonStateKey = "common_state/shard_0_1";  ///< its unique key
/// Where it keeps SaveHooks::content_metadata, as Megatron-Core from 0.13 on does.
inline constexpr const char* kContentMetadataKey = "content_metadata";

/// The common state as a strategy gets it to store it: a dict, and the same as torch.save writes
/// it.
class CommonState {
 public:
  explicit CommonState(Value value);
  /// `archive`: the bytes of the torch file that the value was read from, so that nothing of them
  /// changes on the way.
  CommonState(Value value, Bytes archive)
      : value_(std::move(value)), archive_(std::move(archive)) {}

  const Value& value() const noexcept { return value_; }
  const Bytes& archive() const noexcept { return archive_; }

 private:
  Value value_;
  Bytes archive_;
};

enum class CommonForm : std::uint8_t {
  kFile,    ///< a strategy's write_index() gets it
  kObject,  ///< one of the items
};
/// How a save stores it, if there is one.
CommonForm common_form(Compat compat) noexcept;

/// An object, such as the common state, as these conventions store it: in a list or as it is.
[[nodiscard]] Bytes stored_object(const Value& value, const Conventions& conventions);
/// What was stored in a list; anything else as it is.
[[nodiscard]] Value unwrap_object(const Value& stored);

/// Takes the object with the common state out of the others, and tells before which of them it was;
/// empty if there is none.
struct CommonObject {
  BytesStorageMetadata object;
  std::size_t position = 0;
};
[[nodiscard]] std::optional<CommonObject> take_common_object(Metadata& metadata);

/// Takes the objects out of the others that are copies of values of the common state
/// (Metadata::common_paths, which is empty afterwards).
[[nodiscard]] std::vector<BytesStorageMetadata> take_common_values(Metadata& metadata);

/// The common state in a torch file. Throws CheckpointError (corrupt) unless it is a dict.
[[nodiscard]] Value read_common_file(const ReadableFile& file);
/// `common` itself, if it is a dict; throws CheckpointError (corrupt) otherwise.
[[nodiscard]] Value require_dict(Value common);

}  // namespace dckpt
