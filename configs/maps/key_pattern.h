#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dckpt {

/// Keys that differ in numbers: "model.layers.{l}.mlp.experts.{e}.w1.weight". A number is a whole
/// part between dots; everything else stands for itself. {l+m} is a number m that continues those
/// of l: the key holds m plus the count of the values of l. {2l+1} is a number l of which the key
/// holds twice the value, plus 1. Matching takes time linear in the key.
class KeyPattern {
 public:
  /// `text` must have no problem.
  explicit KeyPattern(std::string_view text);

  /// Returns the problem of a pattern as text for messages; empty if there is none.
  static std::optional<std::string> problem_of(std::string_view text);

  /// Names of the numbers, in the order of the key.
  const std::vector<std::string>& numbers() const noexcept { return numbers_; }
  bool has(std::string_view number) const noexcept;

  /// Returns whether a number continues another one, as in {l+m}.
  bool counts_on() const noexcept;
  /// Returns the pattern once `number` is known to have `count` values. Until then, keys with a
  /// number that continues it do not match.
  KeyPattern behind(std::string_view number, std::int64_t count) const;

  /// Returns whether the key holds multiples of a number, as in {2l}.
  bool has_steps() const noexcept;

  /// Returns the numbers in a key of this pattern; empty for other keys. Numbers are decimals
  /// without leading zeros.
  std::optional<std::vector<std::int64_t>> match(std::string_view key) const;

  /// Returns the key with these numbers, one for each name.
  std::string key(std::span<const std::int64_t> numbers) const;

  /// Removes a number's part: "decoder.layers.{l}.x" → "decoder.layers.x".
  KeyPattern without(std::string_view number) const;
  KeyPattern with_suffix(std::string_view suffix) const;

  std::string text() const;
  /// Returns the text with {l} in place of {2l} and {2l+1}.
  std::string without_steps() const;

  /// Returns the text that all keys of the pattern share, with {} for each number and each part of
  /// digits. Patterns that match the same keys have equal skeletons.
  std::string skeleton() const;
  /// Returns whether a key may match both patterns. Numbers that continue others have values of
  /// their own.
  bool overlaps(const KeyPattern& other) const;

 private:
  /// The decimals that a part stands for: `first`, then each `step` more (0: no other). Words have
  /// none.
  struct Values {
    std::optional<std::int64_t> first{};
    std::int64_t step = 0;
  };

  KeyPattern() = default;
  /// `next` is the position of the part's number among all, and is advanced.
  Values values_of(std::size_t part, std::size_t& next) const;

  std::vector<std::string> parts_;  ///< as in the text
  std::vector<std::string> numbers_;
  std::vector<std::optional<std::int64_t>> first_;  ///< the value in the key for number 0; empty
                                                    ///< until it is known
  std::vector<std::int64_t> steps_;  ///< the difference of the values for numbers 0 and 1
};

/// Returns the skeleton of a key, with {} for each part that is a decimal number.
std::string skeleton_of(std::string_view key);

}  // namespace dckpt
