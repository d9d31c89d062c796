#pragma once

#include <optional>
#include <string>

namespace dckpt {

/// What the keys of a checkpoint start with where those of the map start with something else: what
/// some writers put in front of all keys, what files of a bare model lack, and how models of text
/// and images tell their language model apart.
struct KeyPrefix {
  std::string stored{};     ///< "module.", "model.language_model."
  std::string of_map{};     ///< in its place: nothing, "model."
  bool is_of_text = false;  ///< other keys are those of other parts of the model

  /// The map's key for a stored one; empty if it is no key of the model. Keys that start with
  /// neither are the same on both sides ("lm_head.weight"), if there is something in place.
  std::optional<std::string> key(const std::string& stored_key) const;
  /// The stored key for one of the map's.
  std::string stored_key(const std::string& key) const;
};

/// In front of the keys of a language model, in models of text and images.
inline constexpr const char* kTextPrefix = "language_model.";

}  // namespace dckpt
