#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace dckpt {

/// The beginnings of a model's keys in one of the namings of transformers: those of its language
/// model, of its head, and of the other parts, such as a vision tower.
struct ModelNaming {
  std::string_view text;
  std::string_view head;
  std::string_view others;
};

/// The names that a model's files have for the keys of an adapter. Files of a model may lack the
/// first part of the keys, or have one more, as transformers loads models and their bare backbones
/// alike; and models of text and images have other keys since transformers 4.52, and other ones
/// than their language model alone.
class NamesInModel {
 public:
  /// Chooses the names under which a model has the most of `keys`.
  NamesInModel(const std::unordered_map<std::string_view, std::size_t>& model,
               std::span<const std::string> keys);

  std::string operator()(const std::string& key) const;
  std::size_t found() const noexcept { return found_; }
  /// Returns a sentence about names that belong to another naming; empty if there are none.
  std::string change() const;

 private:
  bool drop_first_ = false;            ///< drops the part before the first dot
  std::string_view add_ = {};          ///< put in front
  const ModelNaming* from_ = nullptr;  ///< with `to_`: the adapter's naming and the model's
  const ModelNaming* to_ = nullptr;
  std::size_t found_ = 0;
};

}  // namespace dckpt
