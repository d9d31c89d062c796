#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dckpt {

/// Keys that differ in numbers: "model.layers.{l}.mlp.experts.{e}.w1.weight". A number is a whole
/// part between dots; everything else stands for itself. {l+m} is the number m, counted on behind
/// those of l, so that keys have l + m. Matching takes time linear in the key.
class KeyPattern {
 public:
  /// `text` must have no problem.
  explicit KeyPattern(std::string_view text);

  /// What is wrong with a pattern, for people; empty if nothing is.
  static std::optional<std::string> problem_of(std::string_view text);

  /// Names of the numbers, in the order of the key.
  const std::vector<std::string>& numbers() const noexcept { return numbers_; }
  bool has(std::string_view number) const noexcept;

  /// Whether a number is counted on behind others, as in {l+m}.
  bool counts_on() const noexcept;
  /// The pattern once `number` is known to have `count` values. Until then, keys with a number that
  /// counts on are none of it.
  KeyPattern behind(std::string_view number, std::int64_t count) const;

  /// The numbers in a key of this pattern; empty for other keys. Numbers are written as decimals
  /// without leading zeros.
  std::optional<std::vector<std::int64_t>> match(std::string_view key) const;

  /// The key with these numbers, one for each name.
  std::string key(std::span<const std::int64_t> numbers) const;

  /// The pattern without a number's part: "decoder.layers.{l}.x" → "decoder.layers.x".
  KeyPattern without(std::string_view number) const;
  KeyPattern with_suffix(std::string_view suffix) const;

  std::string text() const;

  /// What all keys of the pattern have in common: each number as {}. Equal skeletons may match the
  /// same keys.
  std::string skeleton() const;

 private:
  KeyPattern() = default;

  std::vector<std::string> parts_;  ///< as in the text
  std::vector<std::string> numbers_;
  std::vector<std::optional<std::int64_t>> first_;  ///< what each is in a key when it is 0
};

/// The skeleton of a key: each part that is a decimal number as {}.
std::string skeleton_of(std::string_view key);

}  // namespace dckpt
