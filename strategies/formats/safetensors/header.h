#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/readable_file.h"
#include "mapping/geometry/dtype.h"
#include "mapping/geometry/shape.h"

namespace dckpt {

// A safetensors file:
//
//     8 bytes     length n of the header, little-endian, at most kMaxSafetensorsHeader
//     n bytes     JSON, padded with blanks:
//                 {"__metadata__": {"format": "pt"},
//                  "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
//     the rest    the elements of the tensors, little-endian and row-major, one tensor after the
//                 other without gaps; offsets count from the end of the header

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  ///< also the reference's limit
inline constexpr std::uint64_t kSafetensorsLengthBytes = 8;

/// The key in `__metadata__` whose value is "pt". transformers 4 loads no file without it.
inline constexpr const char* kSafetensorsFramework = "format";
/// Returns whether an entry of `__metadata__` belongs to the format or to DCP, and not to the
/// model.
bool is_reserved(std::string_view name) noexcept;

/// A tensor of the header. The format's "F4" is torch's float4_e2m1fn_x2, whose last extent counts
/// bytes: "shape": [2, 32] is (2, 16). The last extent of "F6_E2M3" counts three bytes: (2, 8).
struct SafetensorsTensor {
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;

  std::uint64_t nbytes() const noexcept {
    return static_cast<std::uint64_t>(numel(shape)) * item_size(dtype);
  }
  friend bool operator==(const SafetensorsTensor&, const SafetensorsTensor&) = default;
};

/// The content of a file's header.
struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  ///< in the order of their bytes; keys are unique
  std::vector<std::pair<std::string, std::string>> metadata;  ///< `__metadata__`

  /// Returns the value of an entry of `__metadata__`; null if there is none.
  const std::string* find_metadata(std::string_view name) const noexcept;
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

/// Reads the JSON of a header that `data_bytes` bytes follow. `file` names it in messages. Throws
/// CheckpointError: (corrupt) for everything that the reference refuses: broken JSON, tensors that
/// overlap, leave a gap or do not end with the file, lengths that do not match dtype and shape;
/// (unsupported) with the key for element types that torch does not have (of six bits, or unknown).
SafetensorsHeader parse_safetensors_header(ByteView json, std::uint64_t data_bytes,
                                           const std::string& file);

/// The header of a file, and the position at which the elements start.
struct SafetensorsLayout {
  SafetensorsHeader header;
  std::uint64_t data_begin = 0;
};
SafetensorsLayout read_safetensors_header(const ReadableFile& file);

/// Returns the bytes before the elements: length and JSON, padded so that the elements start at a
/// multiple of 8. They are the same bytes as the reference writes for ASCII keys. Throws
/// CheckpointError (unsupported) with the key for an element type or a key that the format does not
/// have, and beyond kMaxSafetensorsHeader.
Bytes write_safetensors_header(const SafetensorsHeader& header);

/// Returns the format's name of an element type: "F32", "BF16", "F8_E4M3", …; empty if it has none.
std::optional<std::string_view> safetensors_dtype(DType dtype) noexcept;

/// Orders tensors as in the reference's files: larger elements first, then by key, so that all are
/// aligned.
bool precedes_in_safetensors(const SafetensorsTensor& a, const SafetensorsTensor& b) noexcept;

/// Returns whether a file starts as a safetensors file does.
bool looks_like_safetensors(const ReadableFile& file);

}  // namespace dckpt
