#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "migration/maps/numbers/map_numbers.h"

namespace dckpt {

/// The number of dense layers before the layers with experts, in maps and in config.json.
inline constexpr const char* kFirstDense = "first_k_dense_replace";

/// The kinds of a model's layers: taken from their keys, else from a configuration's list, else the
/// kind that no row has.
class LayerKinds {
 public:
  LayerKinds() = default;
  LayerKinds(const KeyMap& map, const ModelConfig& config);

  /// Records that only layers of this kind have `key`. Without a layer, it is a key of all layers.
  void tell(std::optional<std::int64_t> layer, const std::string& kind, const std::string& key);
  void set_layers(std::int64_t count) { count_ = count; }

  /// Returns whether a layer is of a kind. Every layer is of the empty kind.
  bool has(std::optional<std::int64_t> layer, const std::string& kind) const;
  /// Returns whether nothing tells if a layer is of this kind or of another one.
  bool is_open(std::optional<std::int64_t> layer, const std::string& kind) const;
  /// Returns "some layers are dense and some are moe"; empty if all layers are of the same kinds.
  std::string mixed() const;
  /// Adds sentences about layers whose keys contradict each other or the configuration, and about
  /// layers of a kind that the map does not know.
  void check(const KeyMap& map, const MapNumbers& numbers,
             std::vector<std::string>& problems) const;

 private:
  /// The words of a configuration, one per layer.
  struct Listed {
    std::string origin;  ///< "layer_types of config.json"
    std::vector<std::string> words;
  };
  /// A set of kinds, of which each layer has exactly one.
  struct Choice {
    MapKinds kinds;
    std::string usual{};  ///< kind of a layer without a key and a word; empty if there is none
    std::vector<Listed> listed{};
    /// The first key that tells the kind, by layer (−1: all) and kind.
    std::map<std::int64_t, std::map<std::string, std::string>> told{};

    const std::map<std::string, std::string>* told_of(std::int64_t layer) const;
    const MapKind* called(const std::string& word) const;
    std::string kind_of(std::int64_t layer) const;
    void check(const KeyMap& map, std::int64_t count, std::optional<std::int64_t> said,
               std::vector<std::string>& problems) const;
    /// Compares dense layers with the number of those that come first, if it is stated.
    void check_first(const MapNumbers& numbers, std::int64_t count,
                     std::vector<std::string>& problems) const;
    void check_words(const KeyMap& map, const Listed& list, std::int64_t count,
                     std::vector<std::string>& problems) const;
  };

  std::vector<Choice> choices_;
  std::int64_t count_ = 0;
};

}  // namespace dckpt
