#pragma once

#include <optional>
#include <string>
#include <vector>

#include "configs/maps/key_map.h"

namespace dckpt {

/// A difference between the beginning of a checkpoint's keys and of the map's: a prefix that some
/// writers put in front of all keys, one that files of a bare model lack, or one that marks the
/// language model in models of text and images.
struct KeyPrefix {
  std::string stored{};     ///< "module.", "model.language_model."
  std::string of_map{};     ///< the map's prefix in its place: empty, or "model."
  bool is_of_text = false;  ///< keys without the prefix belong to other parts of the model
  std::vector<std::string> towers{};  ///< MapTowers::keys; keys that start with one lack the prefix
  std::string of_towers{};            ///< the stored prefix of these keys instead: "model."

  /// Returns the map's key for a stored key; empty if it is not a key of the model. A key with
  /// neither prefix is the same on both sides ("lm_head.weight"), if `of_map` is not empty.
  std::optional<std::string> key(const std::string& stored_key) const;
  /// Returns the stored key for a key of the map.
  std::string stored_key(const std::string& key) const;
};

/// The prefix of a language model's keys in models of text and images.
inline constexpr const char* kTextPrefix = "language_model.";

/// Returns the prefix for files in which the language model's keys have `stored` in place of the
/// map's `of_map`. Where "model.language_model." marks them, "model." is in front of towers, too.
KeyPrefix text_prefix(const KeyMap& map, std::string stored, std::string of_map = {});

}  // namespace dckpt
