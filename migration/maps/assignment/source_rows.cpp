#include "migration/maps/assignment/source_rows.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "mapping/base/error.h"
#include "migration/maps/assignment/key_fit.h"

namespace dckpt {
namespace {

void append(std::vector<AlikeKeys>& to, std::vector<AlikeKeys> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// A number that keys count, and the number of the map that must agree.
struct Counter {
  std::string_view name;
  const char* said;
  std::int64_t most;
  const char* what;
};
constexpr std::array<Counter, 5> kCounters{
    {{kLayer, "num_layers", kMaxMapLayers, "layers"},
     {kExpert, "num_experts", kMaxMapExperts, "experts"},
     {kMtpLayer, "mtp_num_layers", kMaxMapLayers, "layers for multi-token prediction"},
     {kVisionLayer, "vision_num_layers", kMaxMapLayers, "layers of the vision tower"},
     {kVisionBlock, "vision_num_layers", kMaxMapLayers, "blocks of the vision tower"}}};

/// Limits what a checkpoint's keys count, and compares it with the map's numbers.
void check_counts(const decltype(SourceRows::counts)& counts, const MapNumbers& numbers,
                  std::vector<std::string>& problems) {
  for (const auto& [name, counted] : counts) {
    const auto* const known = std::ranges::find(kCounters, name, &Counter::name);
    const Counter counter = known != kCounters.end()
                                ? *known
                                : Counter{name, "", kMaxMapLayers, "values of a number in keys"};
    if (counted > counter.most)
      throw_error(ErrorCode::kUnsupported, "the keys count {} {}, more than {}",
                  grouped(static_cast<std::uint64_t>(counted)), counter.what,
                  grouped(static_cast<std::uint64_t>(counter.most)));
    const auto said = numbers.find(counter.said);
    if (said && *said != counted)
      problems.push_back(str_format("the tensors have {} {}, but {}", counted, counter.what,
                                    numbers.describe(counter.said)));
  }
}

/// Reports once that all towers are missing, instead of each of their tensors.
void require_towers(const KeyMap& map, const MapTarget& target, std::vector<RowTensors>& rows,
                    std::vector<std::string>& problems) {
  std::vector<RowTensors*> missing;
  for (std::size_t row = 0; row < map.tensors.size() && !target.text_only; ++row) {
    const std::string& key = map.tensors[row].megatron;
    if (!map.towers.have(key)) continue;
    if (rows[row].form || rows[row].left_out || target.way_back.absent.contains(key)) return;
    missing.push_back(&rows[row]);
  }
  if (missing.empty()) return;
  for (RowTensors* const table : missing) table->left_out = true;
  problems.emplace_back(
      "the checkpoint has the language model alone; --set parts=text converts it");
}

class Assignment {
 public:
  Assignment(const KeyMap& map, MapNumbers& numbers, const Metadata& source,
             const MapTarget& target, std::optional<MegatronLayout> state_layout,
             Completeness& completeness)
      : map_(map),
        numbers_(numbers),
        source_(source),
        target_(target),
        state_layout_(state_layout),
        completeness_(completeness) {
    for (const MapRow& row : map.tensors) patterns_.emplace_back(row.megatron);
    result_.kinds = LayerKinds(map, numbers.config());
  }

  SourceRows run() {
    choose_side();
    find_flags();
    assign_keys();
    count_layers();
    return std::move(result_);
  }

 private:
  struct Fit : KeyFit {
    bool all = false;  ///< every key is known or ignored
  };

  Fit best_fit(KeyNames names) const {
    Fit best{fit_keys(map_, names, source_, target_.text_only, numbers_.find("num_layers"),
                      names == KeyNames::kHf ? std::nullopt : state_layout_)};
    const SideIndex index(best.side);
    best.all = std::ranges::all_of(source_.tensors, [&](const TensorStorageMetadata& tensor) {
      const auto key = best.prefix.key(tensor.key);
      return is_ignored(names, tensor.key) ||
             (key && (is_ignored(names, *key) || !index.find(*key).empty()));
    });
    return best;
  }

  /// Chooses the side under which most keys are known.
  void choose_side() {
    Fit megatron, hf;
    if (target_.from != KeyNames::kHf) megatron = best_fit(KeyNames::kMegatron);
    if (target_.from != KeyNames::kMegatron) hf = best_fit(KeyNames::kHf);
    if (megatron.known == 0 && hf.known == 0) {
      std::vector<std::string> keys;
      for (const TensorStorageMetadata& tensor : source_.tensors) keys.push_back(tensor.key);
      throw_error(ErrorCode::kMismatch,
                  "the map {} matches no tensor of this checkpoint, {}; the checkpoint has {}",
                  quote(map_.family),
                  !target_.from ? str_format("neither by {}'s names nor by those of Hugging Face",
                                             map_.left_name())
                  : *target_.from == KeyNames::kHf
                      ? std::string("by the names of Hugging Face (from=hf)")
                      : str_format("by {}'s names (from={})", map_.left_name(), name_of_left(map_)),
                  keys.empty() ? "none" : quoted_list(keys));
    }
    const bool open = is_open(megatron, hf);
    if (open && !target_.presumed) require_equal_sides(megatron);
    const bool is_hf = open ? target_.presumed == KeyNames::kHf
                       : !map_.is_megatrons() && megatron.all != hf.all ? hf.all
                                                                        : hf.known > megatron.known;
    Fit& chosen = is_hf ? hf : megatron;
    result_.side = std::move(chosen.side);
    result_.prefix = std::move(chosen.prefix);
  }

  /// Returns whether the keys do not tell the side. A count of known keys is not enough where all
  /// keys may be those of either side, unless the map is Megatron's, whose names are like no other.
  bool is_open(const Fit& left, const Fit& hf) const {
    if (map_.is_megatrons() || left.known == 0 || hf.known == 0) return left.known == hf.known;
    return left.all == hf.all && (left.all || left.known == hf.known || target_.text_only);
  }

  /// Requires the rows of keys that are those of both sides to have the same tensors there, so that
  /// it does not matter which side they are of.
  void require_equal_sides(const Fit& megatron) const {
    const SideIndex index(megatron.side);
    for (const TensorStorageMetadata& tensor : source_.tensors) {
      const auto key = megatron.prefix.key(tensor.key);
      if (!key) continue;
      for (const KeyUse& use : index.find(*key)) {
        const MapRow& row = map_.tensors[use.row];
        if (!row.changes_tensors()) continue;
        throw_error(ErrorCode::kInvalidArgument, {.key = tensor.key},
                    "the keys are those of both sides of the map {}, and tensors of one side "
                    "are not those of the other, such as {}; add the setting from=hf if they "
                    "are in the form that the map calls 'hf', or from={}",
                    quote(map_.family), quote(row.megatron), name_of_left(map_));
      }
    }
  }

  /// Sets flags that no configuration gives to what the tensors show: whether their rows are there.
  void find_flags() {
    const SideIndex index(result_.side);
    std::set<std::size_t> present;
    for (const TensorStorageMetadata& tensor : source_.tensors) {
      const auto key = result_.prefix.key(tensor.key);
      if (!key) continue;
      for (const KeyUse& use : index.find(*key)) present.insert(use.row);
    }
    for (std::size_t row = 0; row < map_.tensors.size(); ++row) {
      const MapRow& entry = map_.tensors[row];
      const bool there = present.contains(row);
      if (!entry.only_if.empty()) result_.flags[entry.only_if] |= there;
      if (!entry.stated_by.empty() && there) result_.flags[entry.stated_by] = true;
    }
    for (std::size_t row = 0; row < map_.tensors.size(); ++row) {
      if (!map_.tensors[row].unless.empty())
        result_.flags.emplace(map_.tensors[row].unless, !present.contains(row));
    }
    for (const auto& [name, value] : result_.flags) numbers_.guess(name, value);
  }

  bool is_ignored(const std::string& key) const { return is_ignored(result_.side.names, key); }

  bool is_ignored(KeyNames names, const std::string& key) const {
    const auto matches = [&](const std::vector<std::string>& globs) {
      return std::ranges::any_of(globs,
                                 [&](const std::string& glob) { return glob_match(glob, key); });
    };
    return names == KeyNames::kHf ? matches(map_.ignore_hf)
                                  : matches(map_.ignore_megatron) || matches(map_.ignore_left);
  }

  /// Returns the layer of a key, if its name has one.
  std::optional<std::int64_t> layer_of(const KeyUse& use) const {
    const KeyPattern& pattern = pattern_of(use);
    const auto& names = pattern.numbers();
    const auto at = std::ranges::find(names, kLayer) - names.begin();
    if (at == std::ssize(names)) return std::nullopt;
    return use.numbers[static_cast<std::size_t>(at)];
  }

  const KeyPattern& pattern_of(const KeyUse& use) const {
    return result_.side.rows[use.row][use.form].tensors[use.tensor].names[use.name];
  }

  /// Returns whether a key is of a layer after the model's own, for multi-token prediction, and the
  /// map has no rows for such layers.
  bool is_behind(const std::string& key) const {
    const auto layers = numbers_.find("num_layers");
    if (result_.side.names != KeyNames::kHf || !layers || has_layers_behind_ ||
        numbers_.find("mtp_num_layers").value_or(0) == 0)
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
    const SideIndex index(result_.side);
    std::vector<std::vector<KeyUse>> uses(source_.tensors.size());
    KeyGroups ignored, behind, others;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const std::string& stored = source_.tensors[i].key;
      const auto key = result_.prefix.key(stored);
      if (key && is_behind(*key)) {
        behind.add(stored);
        continue;
      }
      if (key && target_.text_only && map_.towers.have(*key)) {
        others.add(stored);
        continue;
      }
      if (key) uses[i] = index.find(*key);
      if (!uses[i].empty() || (key && is_state(index, *key, static_cast<std::uint32_t>(i))))
        continue;
      if (is_ignored(stored) || (key && is_ignored(*key)))
        ignored.add(stored);
      else if (result_.prefix.is_of_text && !stored.starts_with(result_.prefix.stored))
        others.add(stored);
      else
        completeness_.unknown.add(stored);
    }
    append(result_.dropped, ignored.groups("the map ignores them"));
    append(result_.dropped,
           behind.groups("layers behind num_hidden_layers, for multi-token prediction"));
    add_others(others);
    result_.rows.resize(map_.tensors.size());
    add_left_out(index, uses);
    find_kinds(uses);
    for (std::size_t i = 0; i < source_.tensors.size(); ++i)
      assign(static_cast<std::uint32_t>(i), uses[i]);
    if (!state_layout_) require_towers(map_, target_, result_.rows, completeness_.problems);
  }

  /// Marks the rows to which left-out keys belong, and appends the uses of these keys.
  void add_left_out(const SideIndex& index, std::vector<std::vector<KeyUse>>& uses) {
    for (const std::string& stored : target_.left_out) {
      const auto key = result_.prefix.key(stored);
      if (!key) continue;
      uses.push_back(index.find(*key));
      for (const KeyUse& use : uses.back()) result_.rows[use.row].left_out = true;
    }
  }

  /// Handles keys beside those of the language model.
  void add_others(const KeyGroups& others) {
    if (target_.text_only && !result_.prefix.is_of_text && map_.towers.keys.empty() &&
        !completeness_.unknown.empty())
      completeness_.problems.emplace_back(
          "parts=text leaves out what is beside keys that start with 'language_model.' or "
          "'model.language_model.', and there are none; a map that names the other parts in "
          "'towers' leaves them out");
    if (target_.text_only)
      append(result_.dropped, others.groups("only the language model is wanted (parts=text)"));
    else if (!others.empty())
      completeness_.others = others;
  }

  /// Returns whether a key is that of optimizer state for a tensor that the map knows, which goes
  /// with the tensor between Megatron's layouts: "optimizer.state.exp_avg.decoder.layers.…".
  bool is_state(const SideIndex& index, const std::string& key, std::uint32_t position) {
    if (result_.side.names != KeyNames::kMegatron || target_.names != KeyNames::kMegatron)
      return false;
    for (std::size_t dot = key.find('.'); dot != key.npos; dot = key.find('.', dot + 1)) {
      if (index.find(key.substr(dot + 1)).empty()) continue;
      result_.states[key.substr(0, dot + 1)].push_back(position);
      return true;
    }
    return false;
  }

  /// Finds the kinds of layers: a layer is of a kind if it has a tensor that only layers of this
  /// kind have.
  void find_kinds(const std::vector<std::vector<KeyUse>>& uses) {
    for (const std::vector<KeyUse>& of_key : uses) {
      if (of_key.empty()) continue;
      const KeyUse& first = of_key.front();
      const std::string& kind = map_.tensors[first.row].layers;
      if (!kind.empty() && std::ranges::all_of(of_key, [&](const KeyUse& use) {
            return map_.tensors[use.row].layers == kind;
          }))
        result_.kinds.tell(layer_of(first), kind, pattern_of(first).key(first.numbers));
    }
  }

  void assign(std::uint32_t position, const std::vector<KeyUse>& uses) {
    const std::string& key = source_.tensors[position].key;
    const KeyUse* taken = nullptr;
    for (const KeyUse& use : uses) {
      const MapRow& row = map_.tensors[use.row];
      if (!result_.kinds.has(layer_of(use), row.layers)) continue;
      if (taken == nullptr || !is_active(map_.tensors[taken->row], numbers_)) taken = &use;
    }
    if (uses.empty()) return;  // reported, or ignored
    if (taken == nullptr) {
      const KeyUse& use = uses.front();
      if (!result_.kinds.is_open(layer_of(use), map_.tensors[use.row].layers))
        return completeness_.unknown.add(key);
      return count(kLayer, layer_of(use).value_or(0) + 1);  // reported with the layer
    }
    const MapRow& row = map_.tensors[taken->row];
    if (!is_active(row, numbers_)) {
      const std::string& flag = inactive_by(row, numbers_);
      if (may_be_dropped(row))
        result_.dropped.push_back({key, {key}, numbers_.describe(flag)});
      else
        completeness_.problems.push_back(
            str_format("{} contradicts that {}", quote(key), numbers_.describe(flag)));
      return;
    }
    RowTensors& table = result_.rows[taken->row];
    if (!table.form) {
      table.form = taken->form;
      table.positions.resize(result_.side.rows[taken->row][taken->form].tensors.size());
    } else if (*table.form != taken->form) {
      return completeness_.problems.push_back(str_format(
          "{} belongs to another form of {} than others do", quote(key), quote(row.megatron)));
    }
    table.name = std::max(table.name, taken->name);
    const auto [first, inserted] = table.positions[taken->tensor].emplace(taken->numbers, position);
    if (!inserted)
      completeness_.problems.push_back(str_format("{} and {} are the same tensor by the map",
                                                  quote(source_.tensors[first->second].key),
                                                  quote(key)));
  }

  /// Returns whether a tensor of Hugging Face's is dropped if a flag says that the model lacks it:
  /// files often have the head that is tied to the embedding, and layers for multi-token prediction
  /// of which config.json says nothing.
  bool may_be_dropped(const MapRow& row) const {
    return result_.side.names == KeyNames::kHf &&
           (row.megatron.starts_with("mtp.") || has_step(row.hf.transform, MapStep::kPadRows));
  }

  void count_layers() {
    for (std::size_t row = 0; row < result_.rows.size(); ++row) {
      if (!result_.rows[row].form) continue;
      for (std::size_t tensor = 0; tensor < result_.rows[row].positions.size(); ++tensor) {
        const KeyPattern& name = result_.pattern(row, tensor);
        const SideForm& form = result_.side.rows[row][*result_.rows[row].form];
        const auto stacked = leading_axes(patterns_[row], name, form);
        if (form.experts_in_rows)
          count(kExpert, numbers_.require(form.steps.front().parts.front()));
        for (const auto& [numbers, position] : result_.rows[row].positions[tensor]) {
          for (std::size_t i = 0; i < numbers.size(); ++i) count(name.numbers()[i], numbers[i] + 1);
          const Shape& size = source_.tensors[position].global_shape();
          for (std::size_t i = 0; i < std::min(stacked.size(), size.size()); ++i)
            count(stacked[i], size[i]);
        }
      }
    }
    check_counts(result_.counts, numbers_, completeness_.problems);
    const auto layers = result_.counts.find(kLayer);
    if (layers == result_.counts.end()) return;
    result_.kinds.set_layers(layers->second);
    if (!state_layout_) result_.kinds.check(map_, numbers_, completeness_.problems);
  }

  void count(const std::string& number, std::int64_t least) {
    std::int64_t& counted = result_.counts[number];
    counted = std::max(counted, least);
  }

  const KeyMap& map_;
  MapNumbers& numbers_;
  const Metadata& source_;
  const MapTarget& target_;
  std::optional<MegatronLayout> state_layout_;
  Completeness& completeness_;
  bool has_layers_behind_ = has_layers_behind(map_);
  std::vector<KeyPattern> patterns_;  // rows by Megatron's names
  SourceRows result_;
};

}  // namespace

const std::uint32_t* RowTensors::find(std::size_t tensor, const RowNumbers& numbers) const {
  if (tensor >= positions.size()) return nullptr;
  const auto found = positions[tensor].find(numbers);
  return found == positions[tensor].end() ? nullptr : &found->second;
}

const KeyPattern& SourceRows::pattern(std::size_t row, std::size_t tensor) const {
  return side.rows[row][rows[row].form.value_or(0)].tensors[tensor].names.front();
}

SourceRows assign_rows(const KeyMap& map, MapNumbers& numbers, const Metadata& source,
                       const MapTarget& target, std::optional<MegatronLayout> state_layout,
                       Completeness& completeness) {
  return Assignment(map, numbers, source, target, state_layout, completeness).run();
}

}  // namespace dckpt
