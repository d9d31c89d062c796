#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"

namespace dckpt {

// The index of a model in several safetensors files, as transformers and DCP write it:
//
//     {"metadata": {"total_size": 1220},
//      "weight_map": {"w": "model-00001-of-00002.safetensors", …}}

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
inline constexpr std::string_view kSafetensorsIndexSuffix = ".safetensors.index.json";
/// The limit of an index, the same as for the header of one file: names of a million tensors.
inline constexpr std::uint64_t kMaxSafetensorsIndex = 100'000'000;

struct SafetensorsIndex {
  std::vector<std::pair<std::string, std::string>> weight_map;  ///< key → file beside the index
};

/// Reads an index. `file` names the text in messages. Throws CheckpointError (corrupt) for broken
/// JSON, for a missing or malformed weight_map, and for file names that lead out of the folder.
SafetensorsIndex parse_safetensors_index(ByteView json, const std::string& file);

/// Writes the keys in order, and `total_size`, the bytes of all tensors.
std::string write_safetensors_index(const SafetensorsIndex& index, std::uint64_t total_size);

}  // namespace dckpt
