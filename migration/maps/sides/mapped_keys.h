#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mapping/planning/rearrange.h"
#include "migration/maps/sides/key_prefix.h"
#include "migration/maps/sides/map_target.h"
#include "strategies/views/converted_reader.h"

namespace dckpt {

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

/// The two sides of a map, as they were found and chosen.
struct MappedSides {
  KeyNames from = KeyNames::kMegatron;
  KeyNames to = KeyNames::kHf;
  MegatronLayout from_layout = MegatronLayout::kHomogeneous;  ///< if `from` is Megatron
  MegatronLayout to_layout = MegatronLayout::kHomogeneous;    ///< if `to` is Megatron
  KeyPrefix prefix{};                                         ///< prefix of the source's keys
  std::map<std::string, bool> flags{};                        ///< see SourceRows::flags
};

/// The numbers that a map has used.
struct MappedCounts {
  std::uint64_t elements_in = 0;  ///< elements of MappedKeys::kept
  std::uint64_t elements_out = 0;
  std::uint64_t padding_in = 0;  ///< elements of `elements_in` in rows that pad the vocabulary
  std::uint64_t padding_out = 0;
  /// Elements of optimizer state that goes along, not counted above.
  std::uint64_t state_elements = 0;
  /// Layers for multi-token prediction, if the map has rows for them.
  std::optional<std::int64_t> mtp_layers{};
  std::optional<std::int64_t> padded_rows{};  ///< rows of the vocabulary as padded by Megatron
};

/// The keys that the result lacks, or has as they are.
struct LeftKeys {
  std::vector<AlikeKeys> dropped{};      ///< of tensors
  std::vector<AlikeKeys> other_types{};  ///< of the result, that are not MapTarget::dtype
  /// Positions of the source's tensors that the result has, and their number of rows without
  /// padding.
  std::vector<std::pair<std::uint32_t, std::optional<std::int64_t>>> kept{};
};

/// A checkpoint under other keys.
struct MappedKeys {
  MappedSides sides{};
  std::vector<RearrangedTensor> tensors;
  std::vector<std::size_t> rows{};       ///< map rows that made `tensors`, same order
  std::vector<ExtraState> extra_states;  ///< if the result has Megatron's names
  /// The conversions of the source's elements, by position, before `tensors` are made of them.
  std::map<std::uint32_t, ElementConversion> conversions{};
  LeftKeys left{};
  MappedCounts counts{};
  SourceSpelling spelling{};
};

}  // namespace dckpt
