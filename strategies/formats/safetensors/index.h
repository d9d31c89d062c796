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
/// As much as the header of one file may have: names of a million tensors.
inline constexpr std::uint64_t kMaxSafetensorsIndex = 100'000'000;

struct SafetensorsIndex {
  std::vector<std::pair<std::string, std::string>> weight_map;  ///< key → file beside the index
};

/// `file` names the text in messages. Throws CheckpointError (corrupt) for broken JSON, without a
/// weight_map of names, and for file names that lead out of the folder.
SafetensorsIndex parse_safetensors_index(ByteView json, const std::string& file);

/// With the keys in order, and `total_size`, the bytes of all tensors.
std::string write_safetensors_index(const SafetensorsIndex& index, std::uint64_t total_size);

}  // namespace dckpt
