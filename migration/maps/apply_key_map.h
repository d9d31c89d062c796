#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "configs/key_map.h"
#include "mapping/base/enum_names.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/rearrange.h"
#include "migration/maps/key_prefix.h"
#include "migration/maps/map_numbers.h"
#include "strategies/views/converted_reader.h"

namespace dckpt {

/// Whose names keys have.
enum class KeyNames : std::uint8_t { kMegatron, kHf };
inline constexpr EnumNames<KeyNames, 2> kKeyNamesNames{
    {{KeyNames::kMegatron, "megatron"}, {KeyNames::kHf, "hf"}}};

/// Where Megatron keeps the numbers of layers and experts.
enum class MegatronLayout : std::uint8_t {
  kHomogeneous,     ///< axes of the tensors
  kNonHomogeneous,  ///< layers in the keys, experts an axis
  kSingleton,       ///< both in the keys; the halves of gated matrices apart
};
inline constexpr EnumNames<MegatronLayout, 3> kMegatronLayoutNames{
    {{MegatronLayout::kHomogeneous, "homogeneous"},
     {MegatronLayout::kNonHomogeneous, "non-homogeneous"},
     {MegatronLayout::kSingleton, "singleton"}}};

/// What the result shall be; what is empty follows from the checkpoint.
struct MapTarget {
  std::optional<KeyNames> names{};  ///< the other ones
  /// Homogeneous, unless the source has another or some layers are dense and some are not.
  std::optional<MegatronLayout> layout{};
  /// Names of Megatron's local layers, or Transformer Engine's; by default those of the source, or
  /// the latter.
  std::optional<bool> local_names{};
  /// Of all elements but an optimizer's, where rows and models allow it; by default they stay.
  std::optional<DType> dtype{};
  bool text_only = false;  ///< drop what a model of text and images has beside its language model
  /// What keys start with: "language_model.", or Hugging Face's "model.language_model.".
  std::string prefix{};
  /// How the source of a round trip calls rows, for the way back: MappedKeys::spelled.
  std::map<std::string, std::string> spelled{};
  std::map<std::string, std::size_t> forms{};  ///< the same for MappedKeys::forms
  /// What the tensors of the source of a round trip were, for the way back: MappedKeys::dtypes.
  std::map<std::string, DType> dtypes{};
  /// Keys that the checkpoint has and the source lacks on request. A row of which it has only such
  /// keys is not made.
  std::vector<std::string> left_out{};
  std::set<std::string> absent{};  ///< for the way back of a round trip: MappedKeys::absent
};

/// An object that Megatron asks for beside a module's weights.
struct ExtraState {
  std::string key;     ///< unique key
  std::string source;  ///< its unique key in a source with Megatron's names
};

struct DroppedKeys {
  std::string keys;  ///< those of one kind: "model.layers.{}.rotary_emb.inv_freq"
  std::uint64_t count = 0;
  std::string why;
};

/// A checkpoint under other keys.
struct MappedKeys {
  KeyNames from = KeyNames::kMegatron;
  KeyNames to = KeyNames::kHf;
  MegatronLayout from_layout = MegatronLayout::kHomogeneous;  ///< if `from` is Megatron
  MegatronLayout to_layout = MegatronLayout::kHomogeneous;    ///< if `to` is Megatron
  KeyPrefix prefix{};                                         ///< of the source's keys
  std::vector<RearrangedTensor> tensors;
  std::vector<std::size_t> rows{};               ///< of the map that made them, same order
  std::vector<ExtraState> extra_states;          ///< if `to` is Megatron
  std::vector<DroppedKeys> dropped;              ///< of tensors
  std::map<std::string, std::string> spelled{};  ///< rows whose source has an alias: which
  std::map<std::string, std::size_t> forms{};    ///< rows whose source has another form: which
  /// Of the source, by the map's keys, where a row casts or MapTarget::dtype is set.
  std::map<std::string, DType> dtypes{};
  std::set<std::string> absent{};  ///< rows, by Megatron's keys, that are left out
  std::vector<DroppedKeys>
      other_types{};  ///< of the result, that are not MapTarget::dtype, and why
  /// Of the source's elements, by position, before `tensors` are made of them.
  std::map<std::uint32_t, ElementConversion> conversions{};
  /// Positions of the source's tensors that the result has, and the rows that are not padding.
  std::vector<std::pair<std::uint32_t, std::optional<std::int64_t>>> kept;
  std::uint64_t elements_in = 0;  ///< of `kept`
  std::uint64_t elements_out = 0;
  std::uint64_t padding_in = 0;  ///< of these, in rows that pad the vocabulary
  std::uint64_t padding_out = 0;
  std::uint64_t state_elements = 0;  ///< of optimizers' state that goes along; not in these counts
  std::optional<std::int64_t> mtp_layers{};   ///< for multi-token prediction, if the map has rows
  std::optional<std::int64_t> padded_rows{};  ///< of a vocabulary, as Megatron has it
};

/// Names and arranges the tensors of `source` as the map says: every one is used or named as
/// dropped, every one of the result is made once, and all elements are used once, but for rows that
/// pad the vocabulary. Reads nothing. Throws CheckpointError (mismatch) with all that does not fit,
/// in groups: keys that the map does not know, keys that are missing, shapes and numbers that
/// contradict each other.
MappedKeys apply_key_map(const KeyMap& map, const MapNumbers& numbers, const Metadata& source,
                         const MapTarget& target = {});

/// Layers, experts and tensors that a map may make.
inline constexpr std::int64_t kMaxMapLayers = 10'000;
inline constexpr std::int64_t kMaxMapExperts = 100'000;
inline constexpr std::uint64_t kMaxMappedTensors = 4'000'000;

}  // namespace dckpt
