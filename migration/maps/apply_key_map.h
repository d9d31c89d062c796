#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/base/enum_names.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/rearrange.h"
#include "migration/maps/key_prefix.h"
#include "migration/maps/map_numbers.h"
#include "strategies/views/converted_reader.h"

namespace dckpt {

/// The naming scheme of keys.
enum class KeyNames : std::uint8_t { kMegatron, kHf };
inline constexpr EnumNames<KeyNames, 2> kKeyNamesNames{
    {{KeyNames::kMegatron, "megatron"}, {KeyNames::kHf, "hf"}}};

/// The place where Megatron keeps the numbers of layers and experts.
enum class MegatronLayout : std::uint8_t {
  kHomogeneous,     ///< both are axes of the tensors
  kNonHomogeneous,  ///< layers are in the keys, experts are an axis
  kSingleton,       ///< both are in the keys, and the halves of gated matrices are apart
};
inline constexpr EnumNames<MegatronLayout, 3> kMegatronLayoutNames{
    {{MegatronLayout::kHomogeneous, "homogeneous"},
     {MegatronLayout::kNonHomogeneous, "non-homogeneous"},
     {MegatronLayout::kSingleton, "singleton"}}};

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
  /// Drop everything beside the language model of a model of text and images.
  bool text_only = false;
  /// The prefix of keys: "language_model.", or Hugging Face's "model.language_model.". By default
  /// that of the map's towers, if they are wanted.
  std::string prefix{};
  bool keys_of_map = false;  ///< keys get no prefix at all, for the way back of a round trip
  /// The names that the source of a round trip uses for rows, for the way back:
  /// MappedKeys::spelled.
  std::map<std::string, std::string> spelled{};
  std::map<std::string, std::size_t> forms{};  ///< the same for MappedKeys::forms
  /// The dtypes of a round trip's source tensors, for the way back: MappedKeys::dtypes.
  std::map<std::string, DType> dtypes{};
  /// Keys that the checkpoint has and the source lacks on request. A row whose keys are all among
  /// them is not made.
  std::vector<std::string> left_out{};
  std::set<std::string> absent{};  ///< MappedKeys::absent, for the way back of a round trip
};

/// An object that Megatron expects beside a module's weights.
struct ExtraState {
  std::string key;     ///< unique key
  std::string source;  ///< its unique key in a source with Megatron's names
};

/// Keys that differ in numbers alone, and what is to be said of them.
struct AlikeKeys {
  std::string kind;               ///< "model.layers.{}.rotary_emb.inv_freq"; of one key, the key
  std::vector<std::string> keys;  ///< at least one, in the order of the source
  std::string why;
};
/// Returns the kind, and of several keys their number: "'a.{}' (2 keys)".
[[nodiscard]] std::string kind_and_count(const AlikeKeys& group);

/// A checkpoint under other keys.
struct MappedKeys {
  KeyNames from = KeyNames::kMegatron;
  KeyNames to = KeyNames::kHf;
  MegatronLayout from_layout = MegatronLayout::kHomogeneous;  ///< if `from` is Megatron
  MegatronLayout to_layout = MegatronLayout::kHomogeneous;    ///< if `to` is Megatron
  KeyPrefix prefix{};                                         ///< prefix of the source's keys
  std::vector<RearrangedTensor> tensors;
  std::vector<std::size_t> rows{};               ///< map rows that made `tensors`, same order
  std::vector<ExtraState> extra_states;          ///< if `to` is Megatron
  std::vector<AlikeKeys> dropped;                ///< of tensors
  std::map<std::string, bool> flags{};           ///< see SourceRows::flags
  std::map<std::string, std::string> spelled{};  ///< rows whose source has an alias: which
  std::map<std::string, std::size_t> forms{};    ///< rows whose source has another form: which
  /// The dtypes of the source, by the map's keys, where a row casts or MapTarget::dtype is set.
  std::map<std::string, DType> dtypes{};
  std::set<std::string> absent{};        ///< rows, by Megatron's keys, that are left out
  std::vector<AlikeKeys> other_types{};  ///< of the result, that are not MapTarget::dtype
  /// The conversions of the source's elements, by position, before `tensors` are made of them.
  std::map<std::uint32_t, ElementConversion> conversions{};
  /// Positions of the source's tensors that the result has, and their number of rows without
  /// padding.
  std::vector<std::pair<std::uint32_t, std::optional<std::int64_t>>> kept;
  std::uint64_t elements_in = 0;  ///< elements of `kept`
  std::uint64_t elements_out = 0;
  std::uint64_t padding_in = 0;  ///< elements of `elements_in` in rows that pad the vocabulary
  std::uint64_t padding_out = 0;
  /// Elements of optimizer state that goes along, not counted above.
  std::uint64_t state_elements = 0;
  /// Layers for multi-token prediction, if the map has rows for them.
  std::optional<std::int64_t> mtp_layers{};
  std::optional<std::int64_t> padded_rows{};  ///< rows of the vocabulary as padded by Megatron
};

/// Renames and rearranges the tensors of `source` by the map. Every source tensor is used or listed
/// as dropped, every result tensor is made once, and all elements are used once, except rows that
/// pad the vocabulary. Reads no elements. Throws CheckpointError (mismatch) that lists all misfits
/// in groups: unknown keys, missing keys, and contradictory shapes and numbers.
MappedKeys apply_key_map(const KeyMap& map, const MapNumbers& numbers, const Metadata& source,
                         const MapTarget& target = {});

/// Returns what keeps `source`, which has Hugging Face's keys, from being a whole model with these
/// numbers, as sentences: missing keys, and contradictory shapes and numbers. Keys that the map
/// does not know and numbers that nothing states are no obstacles. Throws CheckpointError
/// (mismatch) if the map knows no key, (unsupported) beyond the limits.
std::vector<std::string> misfits(const KeyMap& map, const MapNumbers& numbers,
                                 const Metadata& source, const MapTarget& target);

/// Limits of the layers, experts and tensors that a map may make.
inline constexpr std::int64_t kMaxMapLayers = 10'000;
inline constexpr std::int64_t kMaxMapExperts = 100'000;
inline constexpr std::uint64_t kMaxMappedTensors = 4'000'000;

}  // namespace dckpt
