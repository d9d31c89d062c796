#include "migration/maps/assignment/layer_kinds.h"

#include <algorithm>
#include <set>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::int64_t kAll = -1;

/// Returns the words that a configuration lists by layer: texts or numbers, or the letters of a
/// pattern such as "M*-M|E", in which | divides pipeline stages and / begins what is behind the
/// layers. Other values have no words.
std::vector<std::string> words_of(const Value& value) {
  std::vector<std::string> words;
  if (value.is_str()) {
    for (const char letter : value.as_str()) {
      if (letter == '/') break;
      if (letter != '|') words.emplace_back(1, letter);
    }
  } else if (value.is_sequence()) {
    for (const Value& item : value.items()) {
      if (item.is_str())
        words.push_back(item.as_str());
      else
        words.push_back(item.is_int() ? std::to_string(item.as_int()) : std::string());
    }
  }
  return words;
}

std::string either_of(const std::vector<MapKind>& kinds) {
  std::string text;
  for (std::size_t i = 0; i < kinds.size(); ++i)
    text += (i == 0 ? "" : i + 1 == kinds.size() ? " or " : ", ") + kinds[i].name;
  return text;
}

}  // namespace

LayerKinds::LayerKinds(const KeyMap& map, const ModelConfig& config) {
  const Value* const text = config.hf.find(kHfTextConfig);
  for (MapKinds& kinds : map.all_kinds()) {
    Choice& choice = choices_.emplace_back(Choice{.kinds = std::move(kinds)});
    const auto add = [&](const Value& from, const std::string& name, const std::string& where) {
      const Value* const value = from.find(name);
      if (value == nullptr) return;
      if (std::vector<std::string> words = words_of(*value); !words.empty())
        choice.listed.push_back({str_format("{} of {}", name, where), std::move(words)});
    };
    for (const std::string& name : choice.kinds.args) {
      add(config.args, name, "args");
      add(config.run_config, name, "run_config.yaml");
    }
    for (const std::string& name : choice.kinds.hf)
      add(text != nullptr && text->find(name) != nullptr ? *text : config.hf, name, "config.json");
    const auto without_rows = std::ranges::find_if(choice.kinds.layers, [&](const MapKind& kind) {
      return std::ranges::none_of(map.tensors,
                                  [&](const MapRow& row) { return row.layers == kind.name; });
    });
    if (without_rows != choice.kinds.layers.end()) choice.usual = without_rows->name;
    // Layers of maps that do not name their kinds are dense unless a key tells otherwise.
    if (choices_.size() > map.kinds.size()) choice.usual = kDenseLayers;
  }
}

void LayerKinds::tell(std::optional<std::int64_t> layer, const std::string& kind,
                      const std::string& key) {
  for (Choice& choice : choices_) {
    if (choice.kinds.find(kind) != nullptr) choice.told[layer.value_or(kAll)].emplace(kind, key);
  }
}

bool LayerKinds::has(std::optional<std::int64_t> layer, const std::string& kind) const {
  return kind.empty() || std::ranges::any_of(choices_, [&](const Choice& choice) {
           return choice.kind_of(layer.value_or(kAll)) == kind;
         });
}

bool LayerKinds::is_open(std::optional<std::int64_t> layer, const std::string& kind) const {
  return std::ranges::any_of(choices_, [&](const Choice& choice) {
    return choice.kinds.find(kind) != nullptr && choice.kind_of(layer.value_or(kAll)).empty();
  });
}

std::string LayerKinds::mixed() const {
  for (const Choice& choice : choices_) {
    for (std::int64_t layer = 1; layer < count_; ++layer) {
      const std::string first = choice.kind_of(0);
      const std::string other = choice.kind_of(layer);
      if (first != other)
        return str_format("some layers are {} and some are {}", std::min(first, other),
                          std::max(first, other));
    }
  }
  return {};
}

void LayerKinds::check(const KeyMap& map, const MapNumbers& numbers,
                       std::vector<std::string>& problems) const {
  for (const Choice& choice : choices_) {
    choice.check(map, count_, numbers.find("num_layers"), problems);
    choice.check_first(numbers, count_, problems);
  }
}

const std::map<std::string, std::string>* LayerKinds::Choice::told_of(std::int64_t layer) const {
  const auto found = told.find(layer);
  if (found != told.end()) return &found->second;
  const auto of_all = told.find(kAll);
  return of_all == told.end() ? nullptr : &of_all->second;
}

const MapKind* LayerKinds::Choice::called(const std::string& word) const {
  const auto found = std::ranges::find_if(kinds.layers, [&](const MapKind& kind) {
    return std::ranges::find(kind.words, word) != kind.words.end();
  });
  return found == kinds.layers.end() ? nullptr : &*found;
}

std::string LayerKinds::Choice::kind_of(std::int64_t layer) const {
  if (const auto* const keys = told_of(layer)) return keys->rbegin()->first;
  for (const Listed& list : listed) {
    if (layer < 0 || layer >= std::ssize(list.words)) continue;
    if (const MapKind* const kind = called(list.words[static_cast<std::size_t>(layer)]))
      return kind->name;
  }
  return usual;
}

void LayerKinds::Choice::check(const KeyMap& map, std::int64_t count,
                               std::optional<std::int64_t> said,
                               std::vector<std::string>& problems) const {
  for (const auto& [layer, keys] : told) {
    if (layer >= count || keys.size() < 2) continue;
    problems.push_back(str_format(
        "{} keys of two kinds of layers: {} is for {}, and {} for {}",
        layer == kAll ? std::string("the layers have") : str_format("layer {} has", layer),
        quote(keys.begin()->second), keys.begin()->first, quote(keys.rbegin()->second),
        keys.rbegin()->first));
  }
  for (const Listed& list : listed) {
    if (!said && std::ssize(list.words) != count)
      problems.push_back(str_format("the tensors have {} layers, but {} lists {}", count,
                                    list.origin, list.words.size()));
    check_words(map, list, std::max(count, said.value_or(std::ssize(list.words))), problems);
  }
  for (std::int64_t layer = 0; layer < count; ++layer) {
    if (kind_of(layer).empty())
      problems.push_back(str_format(
          "nothing tells whether layer {} is {}: it has no key that only one of them has", layer,
          either_of(kinds.layers)));
  }
}

void LayerKinds::Choice::check_first(const MapNumbers& numbers, std::int64_t count,
                                     std::vector<std::string>& problems) const {
  const auto first = numbers.find(kFirstDense);
  if (!first || kinds.find(kDenseLayers) == nullptr || kinds.find(kMoeLayers) == nullptr) return;
  for (std::int64_t layer = 0; layer < count; ++layer) {
    const auto* const keys = told_of(layer);
    const char* const kind = layer < *first ? kDenseLayers : kMoeLayers;
    if (keys == nullptr || keys->contains(kind)) continue;
    return problems.push_back(str_format("layer {} has {}, as {} layers, but {}", layer,
                                         quote(keys->begin()->second), keys->begin()->first,
                                         numbers.describe(kFirstDense)));
  }
}

void LayerKinds::Choice::check_words(const KeyMap& map, const Listed& list, std::int64_t count,
                                     std::vector<std::string>& problems) const {
  std::set<std::string> unknown;
  for (std::int64_t layer = 0; layer < std::min(count, std::ssize(list.words)); ++layer) {
    const std::string& word = list.words[static_cast<std::size_t>(layer)];
    const MapKind* const kind = called(word);
    if (kind == nullptr) {
      if (unknown.insert(word).second)
        problems.push_back(str_format(
            "layer {} is {} ({}), and the map {} has no kind of layers for that, only {}", layer,
            quote(word), list.origin, quote(map.family), either_of(kinds.layers)));
      continue;
    }
    const auto* const keys = told_of(layer);
    if (keys != nullptr && !keys->contains(kind->name))
      problems.push_back(str_format("layer {} is {} ({}), which means {}, but has {}, as {} layers",
                                    layer, quote(word), list.origin, kind->name,
                                    quote(keys->begin()->second), keys->begin()->first));
  }
}

}  // namespace dckpt
