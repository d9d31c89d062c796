#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/base/enum_names.h"
#include "mapping/geometry/dtype.h"

namespace dckpt {

/// The naming scheme of keys: that of the map's left side, which is Megatron's unless the map names
/// another trainer, or Hugging Face's.
enum class KeyNames : std::uint8_t { kMegatron, kHf };
inline constexpr EnumNames<KeyNames, 3> kKeyNamesNames{
    {{KeyNames::kMegatron, "megatron"}, {KeyNames::kMegatron, "left"}, {KeyNames::kHf, "hf"}}};

/// The choices of a source where a map has several ways to spell the same. A target that gets them
/// makes the same source again.
struct SourceSpelling {
  std::map<std::string, std::string> spelled{};  ///< rows whose source has an alias: which
  std::map<std::string, std::size_t> forms{};    ///< rows whose source has another form: which
  /// The dtypes of the source, by the map's keys, where a row casts or MapTarget::dtype is set.
  std::map<std::string, DType> dtypes{};
  std::set<std::string> absent{};  ///< rows, by Megatron's keys, that are left out
};

/// The wanted result. Empty fields follow from the checkpoint.
struct MapTarget {
  /// The naming scheme of the source. By default the one that knows more of its keys.
  std::optional<KeyNames> from{};
  /// The naming scheme of the source if both know as many of its keys; empty if nothing tells.
  std::optional<KeyNames> presumed{};
  std::optional<KeyNames> names{};  ///< by default, the naming scheme that the source does not have
  /// Homogeneous by default, unless the source has another layout, or some layers are dense and
  /// some are not.
  std::optional<MegatronLayout> layout{};
  /// True for the names of Megatron's local layers, false for Transformer Engine's. By default
  /// those of the source, or Transformer Engine's.
  std::optional<bool> local_names{};
  /// The dtype of all elements except an optimizer's, where rows and models allow it. By default
  /// dtypes stay as they are.
  std::optional<DType> dtype{};
  /// True for one tensor of all experts in Hugging Face's keys, false for one of each. By default
  /// as the map writes them.
  std::optional<bool> fused_experts{};
  /// Drop everything beside the language model of a model of text and images.
  bool text_only = false;
  /// The prefix of keys: "language_model.", or Hugging Face's "model.language_model.". By default
  /// that of the map's towers, if they are wanted.
  std::string prefix{};
  bool keys_of_map = false;   ///< keys get no prefix at all, for the way back of a round trip
  SourceSpelling way_back{};  ///< that of a round trip's source: MappedKeys::spelling
  /// Keys that the checkpoint has and the source lacks on request. A row whose keys are all among
  /// them is not made.
  std::vector<std::string> left_out{};
};

/// Limits of the layers, experts and tensors that a map may make.
inline constexpr std::int64_t kMaxMapLayers = 10'000;
inline constexpr std::int64_t kMaxMapExperts = 100'000;
inline constexpr std::uint64_t kMaxMappedTensors = 4'000'000;

}  // namespace dckpt
