#include "strategies/key_map/apply_key_map.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "configs/key_pattern.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "strategies/key_map/map_sides.h"
#include "strategies/key_map/relation.h"

namespace dckpt {
namespace {

constexpr std::string_view kScaleSuffix = "weight_scale_inv";
constexpr const char* kLayer = "l";
constexpr const char* kExpert = "e";

using Numbers = std::vector<std::int64_t>;

/// What some writers put in front of all keys, and what files of a bare model lack.
struct Prefix {
  std::string stripped{};
  std::string added{};

  std::optional<std::string> key(const std::string& stored) const {
    if (!stored.starts_with(stripped)) return std::nullopt;
    return added + stored.substr(stripped.size());
  }
};

/// Counts keys by what they have in common.
class KeyGroups {
 public:
  void add(const std::string& key) {
    auto& [count, first] = groups_[skeleton_of(key)];
    if (count++ == 0) first = key;
  }
  bool empty() const noexcept { return groups_.empty(); }
  void report(const std::string& what, ProblemList& problems) const {
    for (const auto& [skeleton, group] : groups_) {
      const auto& [count, first] = group;
      problems.add(count == 1
                       ? str_format("{}: {}", what, quote(first))
                       : str_format("{}: {} ({} keys)", what, quote(skeleton), grouped(count)));
    }
  }
  std::vector<DroppedKeys> dropped(const std::string& why) const {
    std::vector<DroppedKeys> result;
    for (const auto& [skeleton, group] : groups_)
      result.push_back({group.first == 1 ? group.second : skeleton, group.first, why});
    return result;
  }

 private:
  std::map<std::string, std::pair<std::uint64_t, std::string>> groups_;
};

/// The numbers of a row that a pattern lacks: leading axes of its tensors.
std::vector<std::string> stacked_numbers(const KeyPattern& row, const KeyPattern& pattern) {
  std::vector<std::string> names = row.numbers();
  std::erase_if(names, [&](const std::string& name) { return pattern.has(name); });
  return names;
}

/// Those of `names`, from the numbers of an instance of `row`.
Numbers pick(const KeyPattern& row, std::span<const std::int64_t> instance,
             const std::vector<std::string>& names) {
  Numbers result;
  for (const std::string& name : names) {
    const auto at = std::ranges::find(row.numbers(), name) - row.numbers().begin();
    result.push_back(instance[static_cast<std::size_t>(at)]);
  }
  return result;
}

bool has_step(std::span<const MapTransform> steps, MapStep step) {
  return std::ranges::find(steps, step, &MapTransform::step) != steps.end();
}

/// Where an instance of a row finds its elements.
struct SourceTensor {
  std::uint32_t position = 0;
  Numbers prefix{};  ///< offsets on its leading axes
};

class Application {
 public:
  /// `state_layout`: the source is state of an optimizer for some of a model's tensors, under their
  /// names in this layout.
  Application(const KeyMap& map, const MapNumbers& numbers, const Metadata& source,
              const MapTarget& target, std::optional<MegatronLayout> state_layout = {})
      : map_(map),
        numbers_(numbers),
        source_(source),
        target_(target),
        state_layout_(state_layout) {
    for (const MapRow& row : map.tensors) patterns_.emplace_back(row.megatron);
  }

  MappedKeys run() {
    refuse_models();
    choose_source();
    find_flags();
    assign_keys();
    count_layers();
    choose_target();
    for (std::size_t row = 0; row < map_.tensors.size(); ++row) arrange(row);
    raise_problems();
    finish();
    for (const auto& [prefix, positions] : states_) add_state(prefix, positions);
    return std::move(result_);
  }

 private:
  // What is there.

  void refuse_models() const {
    for (const MapRefusal& refusal : map_.refuse) {
      if (!numbers_.is_true(refusal.only_if)) continue;
      throw CheckpointError(
          ErrorCode::kUnsupported,
          str_format("the map {} is not for this model: {}, and {}", quote(map_.family),
                     numbers_.describe(refusal.only_if), refusal.because));
    }
  }

  /// The side, layout and prefix under which most keys are known.
  void choose_source() {
    std::size_t best = 0;
    const auto consider = [&](KeyNames names, MegatronLayout layout,
                              const std::vector<Prefix>& prefixes) {
      MapSide side = side_of(map_, names, layout);
      const SideIndex index(side);
      for (const Prefix& prefix : prefixes) {
        std::size_t known = 0;
        for (const TensorStorageMetadata& tensor : source_.tensors) {
          const auto key = prefix.key(tensor.key);
          if (key && !index.find(*key).empty()) ++known;
        }
        if (known <= best) continue;
        best = known;
        from_ = side;
        prefix_ = prefix;
      }
    };
    for (const auto& [layout, name] : kMegatronLayoutNames) {
      if (state_layout_.value_or(layout) == layout)
        consider(KeyNames::kMegatron, layout,
                 {{}, {.stripped = "module."}, {.stripped = "model."}});
    }
    if (!state_layout_) consider(KeyNames::kHf, {}, {{}, {.added = map_.hf_prefix}});
    if (best == 0) {
      std::vector<std::string> keys;
      for (const TensorStorageMetadata& tensor : source_.tensors) keys.push_back(tensor.key);
      throw CheckpointError(
          ErrorCode::kMismatch,
          str_format("the map {} knows no tensor of this checkpoint, neither by "
                     "Megatron's names nor by those of Hugging Face; there are {}",
                     quote(map_.family), keys.empty() ? "none" : quoted_list(keys)));
    }
    result_.from = from_.names;
    result_.from_layout = from_.layout;
    result_.prefix = prefix_.stripped;
    result_.lacked = prefix_.added;
  }

  /// What no configuration says, the tensors show: a row's flag, by its being there.
  void find_flags() {
    const SideIndex index(from_);
    std::set<std::size_t> present;
    for (const TensorStorageMetadata& tensor : source_.tensors) {
      const auto key = prefix_.key(tensor.key);
      if (!key) continue;
      for (const KeyUse& use : index.find(*key)) present.insert(use.row);
    }
    for (std::size_t row = 0; row < map_.tensors.size(); ++row) {
      const MapRow& entry = map_.tensors[row];
      const bool there = present.contains(row);
      if (!entry.unless.empty()) numbers_.guess(entry.unless, !there);
      if (!entry.only_if.empty()) numbers_.guess(entry.only_if, there);
    }
  }

  bool is_ignored(const std::string& key) const {
    const auto& globs = from_.names == KeyNames::kMegatron ? map_.ignore_megatron : map_.ignore_hf;
    return std::ranges::any_of(globs,
                               [&](const std::string& glob) { return glob_match(glob, key); });
  }

  bool is_active(const MapRow& row) const {
    return (row.only_if.empty() || numbers_.is_true(row.only_if)) &&
           (row.unless.empty() || !numbers_.is_true(row.unless));
  }

  /// The layer of a key, if its name has one.
  std::optional<std::int64_t> layer_of(const KeyUse& use) const {
    const KeyPattern& pattern = pattern_of(use);
    const auto& names = pattern.numbers();
    const auto at = std::ranges::find(names, kLayer) - names.begin();
    if (at == std::ssize(names)) return std::nullopt;
    return use.numbers[static_cast<std::size_t>(at)];
  }

  const KeyPattern& pattern_of(const KeyUse& use) const {
    return from_.rows[use.row][use.form].tensors[use.tensor].names[use.name];
  }

  /// Layers behind the model's own, for multi-token prediction.
  bool is_behind(const std::string& key) const {
    const auto layers = numbers_.find("num_layers");
    if (from_.names != KeyNames::kHf || !layers || numbers_.find("mtp_num_layers").value_or(0) == 0)
      return false;
    for (const MapRow& row : map_.tensors) {
      const std::string& pattern = row.hf.keys.front();
      const std::size_t at = pattern.find("{l}");
      if (at == pattern.npos || !key.starts_with(pattern.substr(0, at))) continue;
      const std::string rest = key.substr(at);
      const auto layer = parse_u64(rest.substr(0, rest.find('.')));
      return layer && *layer >= static_cast<std::uint64_t>(*layers);
    }
    return false;
  }

  void assign_keys() {
    const SideIndex index(from_);
    std::vector<std::vector<KeyUse>> uses(source_.tensors.size());
    KeyGroups ignored, behind;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const std::string& stored = source_.tensors[i].key;
      const auto key = prefix_.key(stored);
      if (key && is_behind(*key)) {
        behind.add(stored);
        continue;
      }
      if (key) uses[i] = index.find(*key);
      if (!uses[i].empty() || (key && is_state(index, *key, static_cast<std::uint32_t>(i))))
        continue;
      is_ignored(stored) || (key && is_ignored(*key)) ? ignored.add(stored) : unknown_.add(stored);
    }
    append(result_.dropped, ignored.dropped("the map ignores them"));
    append(result_.dropped,
           behind.dropped("layers behind num_hidden_layers, for multi-token prediction"));
    find_kinds(uses);
    tables_.resize(map_.tensors.size());
    for (std::size_t i = 0; i < uses.size(); ++i) assign(static_cast<std::uint32_t>(i), uses[i]);
  }

  /// Whether a key is that of an optimizer's state for a tensor that the map knows, which goes with
  /// it between Megatron's layouts: "optimizer.state.exp_avg.decoder.layers.…".
  bool is_state(const SideIndex& index, const std::string& key, std::uint32_t position) {
    if (from_.names != KeyNames::kMegatron || target_.names != KeyNames::kMegatron) return false;
    for (std::size_t dot = key.find('.'); dot != key.npos; dot = key.find('.', dot + 1)) {
      if (index.find(key.substr(dot + 1)).empty()) continue;
      states_[key.substr(0, dot + 1)].push_back(position);
      return true;
    }
    return false;
  }

  void add_state(const std::string& prefix, const std::vector<std::uint32_t>& positions) {
    Metadata state;
    for (const std::uint32_t position : positions) {
      state.tensors.push_back(source_.tensors[position]);
      std::string& key = state.tensors.back().key;
      key = prefix_.key(key)->substr(prefix.size());
    }
    MapTarget target = target_;
    target.layout = result_.to_layout;
    MappedKeys mapped = Application(map_, numbers_, state, target, result_.from_layout).run();
    for (RearrangedTensor& tensor : mapped.tensors) {
      tensor.key.insert(0, prefix);
      for (TensorPart& part : tensor.parts) part.tensor = positions[part.tensor];
      result_.tensors.push_back(std::move(tensor));
    }
    result_.rows.insert(result_.rows.end(), mapped.rows.begin(), mapped.rows.end());
    for (const auto& [position, rows] : mapped.kept)
      result_.kept.emplace_back(positions[position], rows);
    result_.state_elements += mapped.elements_out;
  }

  static void append(std::vector<DroppedKeys>& to, std::vector<DroppedKeys> more) {
    to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }

  /// A layer is one with experts if it has a tensor that only those have.
  void find_kinds(const std::vector<std::vector<KeyUse>>& uses) {
    std::map<std::int64_t, std::pair<bool, bool>> found;
    for (const std::vector<KeyUse>& of_key : uses) {
      if (of_key.empty()) continue;
      const MapLayers kind = map_.tensors[of_key.front().row].layers;
      if (kind == MapLayers::kAll || std::ranges::any_of(of_key, [&](const KeyUse& use) {
            return map_.tensors[use.row].layers != kind;
          }))
        continue;
      auto& [dense, moe] = found[layer_of(of_key.front()).value_or(-1)];
      (kind == MapLayers::kDense ? dense : moe) = true;
    }
    for (const auto& [layer, kinds] : found) {
      if (kinds.second) moe_layers_.insert(layer);
      if (kinds.first && kinds.second)
        problems_.push_back(
            layer < 0 ? "the layers have tensors of a dense MLP and of experts"
                      : str_format("layer {} has tensors of a dense MLP and of experts", layer));
    }
  }

  MapLayers kind_of(std::int64_t layer) const {
    return moe_layers_.contains(layer) || moe_layers_.contains(-1) ? MapLayers::kMoe
                                                                   : MapLayers::kDense;
  }

  void assign(std::uint32_t position, const std::vector<KeyUse>& uses) {
    const std::string& key = source_.tensors[position].key;
    const KeyUse* taken = nullptr;
    for (const KeyUse& use : uses) {
      const MapRow& row = map_.tensors[use.row];
      if (row.layers != MapLayers::kAll && row.layers != kind_of(layer_of(use).value_or(-1)))
        continue;
      if (taken == nullptr || !is_active(map_.tensors[taken->row])) taken = &use;
    }
    if (uses.empty()) return;  // reported, or ignored
    if (taken == nullptr) return unknown_.add(key);
    const MapRow& row = map_.tensors[taken->row];
    if (!is_active(row)) {
      const std::string& flag = row.unless.empty() ? row.only_if : row.unless;
      if (from_.names == KeyNames::kHf)
        result_.dropped.push_back({key, 1, numbers_.describe(flag)});
      else
        problems_.push_back(
            str_format("{} contradicts that {}", quote(key), numbers_.describe(flag)));
      return;
    }
    Table& table = tables_[taken->row];
    if (!table.form) {
      table.form = taken->form;
      table.positions.resize(from_.rows[taken->row][taken->form].tensors.size());
    } else if (*table.form != taken->form) {
      return problems_.push_back(str_format("{} belongs to another form of {} than others do",
                                            quote(key), quote(row.megatron)));
    }
    table.name = std::max(table.name, taken->name);
    const auto [first, inserted] = table.positions[taken->tensor].emplace(taken->numbers, position);
    if (!inserted)
      problems_.push_back(str_format("{} and {} are the same tensor by the map",
                                     quote(source_.tensors[first->second].key), quote(key)));
  }

  // How many layers and experts there are.

  void count_layers() {
    for (std::size_t row = 0; row < tables_.size(); ++row) {
      if (!tables_[row].form) continue;
      for (std::size_t tensor = 0; tensor < tables_[row].positions.size(); ++tensor) {
        const KeyPattern& name = source_pattern(row, tensor);
        const auto stacked = stacked_numbers(patterns_[row], name);
        for (const auto& [numbers, position] : tables_[row].positions[tensor]) {
          for (std::size_t i = 0; i < numbers.size(); ++i) count(name.numbers()[i], numbers[i] + 1);
          const Shape& size = source_.tensors[position].global_shape();
          for (std::size_t i = 0; i < std::min(stacked.size(), size.size()); ++i)
            count(stacked[i], size[i]);
        }
      }
    }
    limit(kLayer, kMaxMapLayers, "layers");
    limit(kExpert, kMaxMapExperts, "experts");
    compare(kLayer, "num_layers", "layers");
    compare(kExpert, "num_experts", "experts");
  }

  void count(const std::string& number, std::int64_t least) {
    std::int64_t& counted = counts_[number];
    counted = std::max(counted, least);
  }

  void limit(const char* number, std::int64_t most, const char* what) const {
    const auto found = counts_.find(number);
    if (found != counts_.end() && found->second > most)
      throw CheckpointError(ErrorCode::kUnsupported,
                            str_format("the keys count {} {}, more than {}",
                                       grouped(static_cast<std::uint64_t>(found->second)), what,
                                       grouped(static_cast<std::uint64_t>(most))));
  }

  void compare(const char* number, const char* name, const char* what) {
    const auto found = counts_.find(number);
    const auto said = numbers_.find(name);
    if (found == counts_.end() || !said || *said == found->second) return;
    problems_.push_back(
        str_format("the tensors have {} {}, but {}", found->second, what, numbers_.describe(name)));
  }

  /// The numbers of a row's instances, the last running fastest.
  std::vector<Numbers> instances(std::size_t row) const {
    std::vector<Numbers> result{{}};
    const MapRow& entry = map_.tensors[row];
    for (const std::string& name : patterns_[row].numbers()) {
      const auto found = counts_.find(name);
      const std::int64_t count = found == counts_.end() ? 0 : found->second;
      std::vector<Numbers> next;
      if (result.size() * static_cast<std::uint64_t>(count) > kMaxMappedTensors)
        throw CheckpointError(ErrorCode::kUnsupported,
                              str_format("the checkpoint has more than {} tensors of the row {}",
                                         grouped(kMaxMappedTensors), quote(entry.megatron)));
      for (const Numbers& numbers : result) {
        for (std::int64_t i = 0; i < count; ++i) {
          if (name == kLayer && entry.layers != MapLayers::kAll && entry.layers != kind_of(i))
            continue;
          next.push_back(numbers);
          next.back().push_back(i);
        }
      }
      result = std::move(next);
    }
    return result;
  }

  // What is made of it.

  void choose_target() {
    result_.to =
        target_.names.value_or(from_.names == KeyNames::kHf ? KeyNames::kMegatron : KeyNames::kHf);
    const auto moe = static_cast<std::int64_t>(moe_layers_.size());
    const auto layers = counts_.find(kLayer);
    const bool mixed =
        moe > 0 && !moe_layers_.contains(-1) && layers != counts_.end() && moe < layers->second;
    const MegatronLayout usual =
        mixed ? MegatronLayout::kNonHomogeneous : MegatronLayout::kHomogeneous;
    result_.to_layout =
        target_.layout.value_or(from_.names == KeyNames::kMegatron ? from_.layout : usual);
    if (mixed && result_.to == KeyNames::kMegatron &&
        result_.to_layout == MegatronLayout::kHomogeneous)
      problems_.push_back(
          "some layers have experts and some have none, which Megatron's homogeneous layout cannot "
          "hold; choose layout=non-homogeneous or layout=singleton");
    to_ = side_of(map_, result_.to, result_.to_layout);
  }

  const KeyPattern& source_pattern(std::size_t row, std::size_t tensor) const {
    return from_.rows[row][tables_[row].form.value_or(0)].tensors[tensor].names.front();
  }

  const SideForm& target_form(std::size_t row) const {
    const auto form = target_.forms.find(map_.tensors[row].megatron);
    return to_
        .rows[row]
             [form == target_.forms.end() || to_.names == KeyNames::kMegatron ? 0 : form->second];
  }

  const KeyPattern& target_pattern(std::size_t row, std::size_t tensor) const {
    const MapRow& entry = map_.tensors[row];
    const std::vector<KeyPattern>& names = target_form(row).tensors[tensor].names;
    if (to_.names == KeyNames::kHf) return names.front();
    const auto spelled = target_.spelled.find(entry.megatron);
    for (std::size_t name = 1; name < names.size() && spelled != target_.spelled.end(); ++name) {
      if (spelling(entry, name) == spelled->second) return names[name];
    }
    return target_.local_names && !entry.local.empty() ? names[1] : names.front();
  }

  /// A row's name by its position among all.
  static const std::string& spelling(const MapRow& row, std::size_t name) {
    if (name == 0) return row.megatron;
    if (!row.local.empty()) {
      if (name == 1) return row.local;
      --name;
    }
    return row.aliases[name - 1];
  }

  void arrange(std::size_t row) {
    const MapRow& entry = map_.tensors[row];
    const Table& table = tables_[row];
    if (!is_active(entry) || ((entry.optional || state_layout_) && !table.form)) return;
    if (from_.names == KeyNames::kMegatron && table.name > 0)
      result_.spelled.emplace(entry.megatron, spelling(entry, table.name));
    if (from_.names == KeyNames::kHf && table.form.value_or(0) > 0)
      result_.forms.emplace(entry.megatron, *table.form);
    const std::vector<Numbers> all = instances(row);
    if (all.empty() && patterns_[row].numbers() == std::vector<std::string>{kLayer} &&
        entry.layers == MapLayers::kAll)
      return missing_.add(entry.megatron);
    try {
      for (const Numbers& instance : all) arrange(row, instance);
      if (all.empty()) return;
      if (entry.has_extra_state())
        add_extra_states(entry.megatron.substr(0, entry.megatron.rfind('.')), all);
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kMismatch) throw;
      problems_.push_back(str_format("{}: {}", entry.megatron, error.message()));
    }
  }

  void arrange(std::size_t row, const Numbers& instance) {
    const SideForm& from = from_.rows[row][tables_[row].form.value_or(0)];
    std::vector<SourceTensor> sources;
    std::vector<Shape> shapes;
    for (std::size_t tensor = 0; tensor < from.tensors.size(); ++tensor) {
      const KeyPattern& pattern = source_pattern(row, tensor);
      const Numbers in_key = pick(patterns_[row], instance, pattern.numbers());
      const std::uint32_t* const position = tables_[row].find(tensor, in_key);
      if (position == nullptr) return miss(pattern.key(in_key));
      const auto stacked = stacked_numbers(patterns_[row], pattern);
      const Shape& size = source_.tensors[*position].global_shape();
      require_stacked(size, stacked, source_.tensors[*position].key);
      sources.push_back({*position, pick(patterns_[row], instance, stacked)});
      shapes.emplace_back(size.begin() + std::ssize(stacked), size.end());
    }
    Relations& known = relations_;
    if (known.row != row || known.from.tensors != shapes) {
      known.row = row;
      known.from = relate(from.steps, shapes, padded_rows(from, shapes), numbers_);
      const SideForm& to = target_form(row);
      known.to =
          relate(to.steps, tensors_of(to.steps, to.tensors.size(), known.from.whole, numbers_),
                 known.from.whole.empty() ? 0 : known.from.whole.front(), numbers_);
      if (known.to.whole != known.from.whole)
        throw CheckpointError(ErrorCode::kMismatch,
                              str_format("the shape {} became {}", to_string(known.from.whole),
                                         to_string(known.to.whole)));
    }
    std::optional<std::int64_t> rows;
    if (has_step(map_.tensors[row].hf.transform, MapStep::kPadRows) && !known.from.whole.empty()) {
      result_.padded_rows = known.from.whole.front();
      for (const RelationPiece& piece : known.to.pieces) {
        if (piece.tensor == RelationPiece::kPadding) rows = piece.box.offsets.front();
      }
    }
    compose(row, instance, sources);
    for (const SourceTensor& source : sources) used_.emplace(source.position, rows);
  }

  /// Once, also if all layers would be in the tensor.
  void miss(std::string key) {
    if (const auto [name, inserted] = missed_.insert(std::move(key)); inserted) missing_.add(*name);
  }

  /// Of a vocabulary that is padded on the way to Megatron.
  std::int64_t padded_rows(const SideForm& form, const std::vector<Shape>& shapes) const {
    if (from_.names != KeyNames::kHf || shapes.front().empty() ||
        !has_step(form.steps, MapStep::kPadRows))
      return 0;
    return to_.names == KeyNames::kHf ? shapes.front().front()
                                      : numbers_.require("padded_vocab_size");
  }

  void require_stacked(const Shape& size, const std::vector<std::string>& stacked,
                       const std::string& key) const {
    bool fits = size.size() >= stacked.size();
    for (std::size_t i = 0; fits && i < stacked.size(); ++i)
      fits = size[i] == counts_.at(stacked[i]);
    if (fits) return;
    std::string expected;
    for (const std::string& name : stacked)
      expected += str_format("{}{} {}", expected.empty() ? "" : " and ", counts_.at(name),
                             name == kLayer ? "layers" : "experts");
    throw CheckpointError(ErrorCode::kMismatch,
                          str_format("{} has the shape {}, expected leading axes for {}",
                                     quote(key), to_string(size), expected));
  }

  /// The elements that the two relations have in common are the parts.
  void compose(std::size_t row, const Numbers& instance, const std::vector<SourceTensor>& sources) {
    for (const RelationPiece& to : relations_.to.pieces) {
      if (to.tensor == RelationPiece::kPadding) {
        result_.padding_in += static_cast<std::uint64_t>(numel(to.box.sizes));
        continue;
      }
      const std::size_t made = target_tensor(row, to.tensor, instance, sources.front());
      for (const RelationPiece& from : relations_.from.pieces) {
        const auto common = intersect(to.box, from.box);
        if (!common) continue;
        if (++parts_ > kMaxParts)
          throw CheckpointError(
              ErrorCode::kUnsupported,
              str_format("the map cuts the tensors into more than {} parts", grouped(kMaxParts)));
        made_[made].tensor.parts.push_back(part(row, to, from, *common, instance, sources));
      }
    }
  }

  TensorPart part(std::size_t row, const RelationPiece& to, const RelationPiece& from,
                  const Box& common, const Numbers& instance,
                  const std::vector<SourceTensor>& sources) {
    const Numbers to_prefix = pick(patterns_[row], instance,
                                   stacked_numbers(patterns_[row], target_pattern(row, to.tensor)));
    TensorPart part{.target = behind(to_prefix, place_in_tensor(to, common))};
    if (from.tensor == RelationPiece::kPadding) {
      part.elements = TensorPart::Elements::kZeros;
      result_.padding_out += static_cast<std::uint64_t>(numel(common.sizes));
      return part;
    }
    const SourceTensor& source = sources[from.tensor];
    part.tensor = source.position;
    part.source = behind(source.prefix, place_in_tensor(from, common));
    part.axes.assign(to_prefix.size(), kNoAxis);
    for (std::size_t axis = 0; axis < common.dims(); ++axis) {
      const bool swapped = axis < 2 && to.transposed != from.transposed;
      part.axes.push_back(
          static_cast<std::int32_t>(source.prefix.size() + (swapped ? 1 - axis : axis)));
    }
    return part;
  }

  static Box behind(const Numbers& prefix, Box box) {
    box.offsets.insert(box.offsets.begin(), prefix.begin(), prefix.end());
    box.sizes.insert(box.sizes.begin(), prefix.size(), 1);
    return box;
  }

  std::size_t target_tensor(std::size_t row, std::size_t tensor, const Numbers& instance,
                            const SourceTensor& like) {
    const KeyPattern& pattern = target_pattern(row, tensor);
    const Numbers in_key = pick(patterns_[row], instance, pattern.numbers());
    std::string key = pattern.key(in_key);
    const auto [found, inserted] = by_key_.try_emplace(key, made_.size());
    const auto owner = std::tuple(row, tensor, in_key);
    if (!inserted) {
      if (made_[found->second].owner != owner)
        throw CheckpointError(ErrorCode::kMismatch, quote(key) + " is made twice");
      return found->second;
    }
    Made made{.owner = owner, .place = place_of(row, instance)};
    RearrangedTensor& result = made.tensor;
    result.key = std::move(key);
    result.properties = source_.tensors[like.position].properties;
    for (const std::string& name : stacked_numbers(patterns_[row], pattern))
      result.size.push_back(counts_.at(name));
    const Shape& shape = relations_.to.tensors[tensor];
    result.size.insert(result.size.end(), shape.begin(), shape.end());
    made_.push_back(std::move(made));
    return found->second;
  }

  /// Layers follow each other, between what comes before and behind them.
  std::tuple<int, std::int64_t, std::size_t> place_of(std::size_t row,
                                                      const Numbers& instance) const {
    const auto is_layered = [](const KeyPattern& pattern) { return pattern.has(kLayer); };
    if (is_layered(patterns_[row])) return {1, pick(patterns_[row], instance, {kLayer})[0], row};
    const auto first = std::ranges::find_if(patterns_, is_layered) - patterns_.begin();
    return {static_cast<std::ptrdiff_t>(row) < first ? 0 : 2, 0, row};
  }

  /// `module`: of these instances of a row.
  void add_extra_states(const std::string& module, const std::vector<Numbers>& all) {
    if (result_.to != KeyNames::kMegatron || !modules_.insert(module).second) return;
    const KeyPattern row(module);
    for (const Numbers& instance : all)
      result_.extra_states.push_back({extra_state(row, instance, result_.to_layout),
                                      extra_state(row, instance, result_.from_layout)});
  }

  std::string extra_state(const KeyPattern& module, const Numbers& instance,
                          MegatronLayout layout) const {
    const KeyPattern pattern = in_layout(module, layout);
    std::string position, grid;
    for (const std::string& name : stacked_numbers(module, pattern)) {
      position += (position.empty() ? "" : ".") + std::to_string(pick(module, instance, {name})[0]);
      grid += (grid.empty() ? "" : ".") + std::to_string(counts_.at(name));
    }
    if (grid.empty()) position = "0", grid = "1";
    return str_format("{}._extra_state/shard_{}_{}",
                      pattern.key(pick(module, instance, pattern.numbers())), position, grid);
  }

  void raise_problems() {
    ProblemList all;
    unknown_.report("not in the map", all);
    missing_.report("missing", all);
    if (std::ranges::any_of(source_.tensors, [](const TensorStorageMetadata& tensor) {
          return tensor.key.ends_with(kScaleSuffix);
        }))
      all.add(
          "the weights have scales (weight_scale_inv), and the map does not say how they are "
          "applied: give it 'dequantise', as the shipped maps have it");
    for (std::string& line : problems_) all.add(std::move(line));
    all.raise_if_any(ErrorCode::kMismatch,
                     str_format("the map {} does not fit this checkpoint, which has {}:",
                                quote(map_.family), describe_source()));
  }

  std::string describe_source() const {
    if (from_.names == KeyNames::kHf) return "Hugging Face keys";
    return str_format("Megatron's keys in the {} layout",
                      name_of(kMegatronLayoutNames, from_.layout));
  }

  void finish() {
    for (const std::string& module : map_.extra_states) {
      const KeyPattern pattern(module);
      std::vector<Numbers> all{{}};
      if (pattern.has(kLayer)) {
        all.clear();
        for (std::int64_t layer = 0; layer < counts_[kLayer]; ++layer) all.push_back({layer});
      }
      add_extra_states(module, all);
    }
    std::ranges::stable_sort(made_, {}, &Made::place);
    for (Made& made : made_) {
      result_.elements_out += static_cast<std::uint64_t>(numel(made.tensor.size));
      result_.tensors.push_back(std::move(made.tensor));
      result_.rows.push_back(std::get<0>(made.owner));
    }
    for (std::size_t i = 0; i < source_.tensors.size(); ++i) {
      const auto used = used_.find(static_cast<std::uint32_t>(i));
      if (used == used_.end()) continue;
      result_.elements_in += static_cast<std::uint64_t>(numel(source_.tensors[i].global_shape()));
      result_.kept.emplace_back(*used);
    }
    if (result_.elements_in - result_.padding_in != result_.elements_out - result_.padding_out)
      throw CheckpointError(
          ErrorCode::kMismatch,
          str_format("the map {} makes {} elements of {}, without padding: rows overlap",
                     quote(map_.family), grouped(result_.elements_out - result_.padding_out),
                     grouped(result_.elements_in - result_.padding_in)));
  }

  /// The tensors of the source that a row has.
  struct Table {
    std::optional<std::size_t> form{};
    std::size_t name = 0;  ///< the last that was seen
    std::vector<std::map<Numbers, std::uint32_t>> positions{};

    const std::uint32_t* find(std::size_t tensor, const Numbers& numbers) const {
      if (tensor >= positions.size()) return nullptr;
      const auto found = positions[tensor].find(numbers);
      return found == positions[tensor].end() ? nullptr : &found->second;
    }
  };

  /// Those of the last shapes: all layers have the same.
  struct Relations {
    std::size_t row = SIZE_MAX;
    Relation from{};
    Relation to{};
  };

  struct Made {
    std::tuple<std::size_t, std::size_t, Numbers> owner;
    std::tuple<int, std::int64_t, std::size_t> place;
    RearrangedTensor tensor{};
  };

  static constexpr std::uint64_t kMaxParts = 50'000'000;

  const KeyMap& map_;
  MapNumbers numbers_;
  const Metadata& source_;
  const MapTarget& target_;
  std::optional<MegatronLayout> state_layout_;
  std::map<std::string, std::vector<std::uint32_t>> states_;  // positions by prefix
  std::vector<KeyPattern> patterns_;                          // of rows, by Megatron's names
  MapSide from_;
  MapSide to_;
  Prefix prefix_;
  std::vector<Table> tables_;
  std::set<std::int64_t> moe_layers_;  // −1: all, as the keys have no layers
  std::map<std::string, std::int64_t, std::less<>> counts_;
  Relations relations_;
  std::vector<Made> made_;
  std::unordered_map<std::string, std::size_t> by_key_;
  std::map<std::uint32_t, std::optional<std::int64_t>> used_;  // rows that are not padding
  std::set<std::string> modules_;
  std::uint64_t parts_ = 0;
  KeyGroups unknown_;
  KeyGroups missing_;
  std::set<std::string> missed_;
  std::vector<std::string> problems_;
  MappedKeys result_;
};

}  // namespace

MappedKeys apply_key_map(const KeyMap& map, const MapNumbers& numbers, const Metadata& source,
                         const MapTarget& target) {
  return Application(map, numbers, source, target).run();
}

}  // namespace dckpt
