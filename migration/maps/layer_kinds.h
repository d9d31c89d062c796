#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "configs/key_map.h"
#include "migration/maps/map_numbers.h"

namespace dckpt {

/// Which layers of a model are of which kinds: as their keys tell, as a configuration lists them if
/// no key does, or of the kind that no row has.
class LayerKinds {
 public:
  LayerKinds() = default;
  LayerKinds(const KeyMap& map, const ModelConfig& config);

  /// Notes that only layers of this kind have a key. Without a layer it is a key of all layers.
  void tell(std::optional<std::int64_t> layer, const std::string& kind, const std::string& key);
  void set_layers(std::int64_t count) { count_ = count; }

  /// Whether a layer is of a kind; every layer is if the kind is empty.
  bool has(std::optional<std::int64_t> layer, const std::string& kind) const;
  /// Whether nothing tells if a layer is of this kind or of another one.
  bool is_open(std::optional<std::int64_t> layer, const std::string& kind) const;
  /// "some layers are dense and some are moe"; empty if all layers are of the same kinds.
  std::string mixed() const;
  /// Adds sentences about layers whose keys contradict each other or the configuration, and about
  /// those of a kind that the map does not know. `said`: how many layers there should be, if
  /// anybody says it.
  void check(const KeyMap& map, std::optional<std::int64_t> said,
             std::vector<std::string>& problems) const;

 private:
  /// Words of a configuration, one for each layer.
  struct Listed {
    std::string origin;  ///< "layer_types of config.json"
    std::vector<std::string> words;
  };
  /// Kinds of which each layer is one.
  struct Choice {
    MapKinds kinds;
    std::string usual{};  ///< without a key and a word; empty: none
    std::vector<Listed> listed{};
    /// By layer (−1: all) and kind: the first key that tells.
    std::map<std::int64_t, std::map<std::string, std::string>> told{};

    const std::map<std::string, std::string>* told_of(std::int64_t layer) const;
    const MapKind* called(const std::string& word) const;
    std::string kind_of(std::int64_t layer) const;
    void check(const KeyMap& map, std::int64_t count, std::optional<std::int64_t> said,
               std::vector<std::string>& problems) const;
    void check_words(const KeyMap& map, const Listed& list, std::int64_t count,
                     std::vector<std::string>& problems) const;
  };

  std::vector<Choice> choices_;
  std::int64_t count_ = 0;
};

}  // namespace dckpt
