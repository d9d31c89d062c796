#include "migration/maps/arrangement/arrange_rows.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "mapping/base/error.h"
#include "migration/maps/arrangement/element_type.h"
#include "migration/maps/arrangement/known_meaning.h"
#include "migration/maps/arrangement/module_rows.h"
#include "migration/maps/arrangement/target_side.h"
#include "migration/maps/assignment/relation.h"
#include "migration/maps/numbers/rotary_order.h"

namespace dckpt {
namespace {

/// The source of a row instance's elements.
struct SourceTensor {
  std::uint32_t position = 0;
  RowNumbers prefix{};         ///< offsets on its leading axes
  std::int64_t first_row = 0;  ///< of this expert, behind them
};

/// The overlap of a source piece and a target piece.
struct Common {
  std::size_t to;
  std::size_t from;
  StridedBox box;
};

class Arrangement {
 public:
  Arrangement(const AssignedSource& source, const MapTarget& target, MappedKeys& result,
              Completeness& completeness)
      : map_(source.map),
        numbers_(source.numbers),
        source_(source.metadata),
        rows_(source.rows),
        target_(target),
        partial_(source.partial),
        result_(result),
        completeness_(completeness),
        to_(map_, rows_, target, completeness) {
    for (const MapRow& row : map_.tensors) patterns_.emplace_back(row.megatron);
    differs_by_layer_ = std::ranges::any_of(
        map_.numbers, [&](const MapNumber& number) { return number.is_by_layer(); });
  }

  void run() {
    result_.sides.to = to_.names();
    result_.sides.to_layout = to_.layout();
    if (std::ranges::any_of(patterns_, [](const KeyPattern& row) { return row.has(kMtpLayer); }))
      result_.counts.mtp_layers = count_of(kMtpLayer);
    for (std::size_t row = 0; row < map_.tensors.size(); ++row) arrange(row);
    finish();
  }

 private:
  std::int64_t count_of(const std::string& number) const {
    const auto found = rows_.counts.find(number);
    return found == rows_.counts.end() ? 0 : found->second;
  }

  /// Returns the numbers of a pattern's instances; the last number runs fastest.
  std::vector<RowNumbers> instances(const KeyPattern& pattern, const std::string& kind) const {
    std::vector<RowNumbers> result{{}};
    for (const std::string& name : pattern.numbers()) {
      const std::int64_t count = count_of(name);
      std::vector<RowNumbers> next;
      if (result.size() * static_cast<std::uint64_t>(count) > kMaxMappedTensors)
        throw_error(ErrorCode::kUnsupported,
                    "the checkpoint has more than {} tensors of the row {}",
                    grouped(kMaxMappedTensors), quote(pattern.text()));
      for (const RowNumbers& numbers : result) {
        for (std::int64_t i = 0; i < count; ++i) {
          if (name == kLayer && !rows_.kinds.has(i, kind)) continue;
          next.push_back(numbers);
          next.back().push_back(i);
        }
      }
      result = std::move(next);
    }
    return result;
  }

  void arrange(std::size_t row) {
    const MapRow& entry = map_.tensors[row];
    const RowTensors& table = rows_.rows[row];
    if (!is_active(entry, numbers_)) return;
    const bool unwanted = target_.text_only && map_.towers.have(entry.megatron);
    if (!table.form &&
        (unwanted || table.left_out || target_.way_back.absent.contains(entry.megatron)))
      return void(result_.spelling.absent.insert(entry.megatron));
    if (!table.form && (entry.optional || partial_)) return;
    if (rows_.side.names == KeyNames::kMegatron && table.name > 0)
      result_.spelling.spelled.emplace(entry.megatron, spelling(entry, table.name));
    if (rows_.side.names == KeyNames::kHf && table.form.value_or(0) > 0)
      result_.spelling.forms.emplace(entry.megatron, *table.form);
    const std::vector<RowNumbers> all = instances(patterns_[row], entry.layers);
    const std::vector<std::string>& counted = patterns_[row].numbers();
    if (all.empty() && counted.size() == 1 && counted.front() != kMtpLayer && entry.layers.empty())
      return completeness_.missing.add(entry.megatron);
    try {
      for (const RowNumbers& instance : all) arrange(row, instance);
      if (all.empty()) return;
      if (!map_.has_extra_state(entry)) return;
      for (const std::string& key : entry.megatron_keys())
        add_extra_states(key.substr(0, key.rfind('.')), all);
    } catch (const UnknownNumber& error) {
      completeness_.unknown_numbers.push_back(
          str_format("{}: {}", entry.megatron, error.message()));
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kMismatch) throw;
      completeness_.problems.push_back(str_format("{}: {}", entry.megatron, error.message()));
    }
  }

  /// Returns the numbers of an instance's layer. Relations are not those of the last layer if it
  /// has numbers of its own.
  const MapNumbers& numbers_of(std::size_t row, const RowNumbers& instance) {
    if (!differs_by_layer_ || !patterns_[row].has(kLayer)) return numbers_;
    const std::int64_t layer = pick(patterns_[row], instance, {kLayer}).front();
    if (std::exchange(layer_, layer) != layer) {
      of_layer_ = numbers_.of_layer(layer);
      relations_.row = SIZE_MAX;
    }
    return *of_layer_;
  }

  void arrange(std::size_t row, const RowNumbers& instance) {
    const MapNumbers& numbers = numbers_of(row, instance);
    const SideForm& from = rows_.side.rows[row][rows_.rows[row].form.value_or(0)];
    std::vector<SourceTensor> sources;
    std::vector<Shape> shapes;
    for (std::size_t tensor = 0; tensor < from.tensors.size(); ++tensor) {
      const KeyPattern& pattern = rows_.pattern(row, tensor);
      const RowNumbers in_key = pick(patterns_[row], instance, pattern.numbers());
      const std::uint32_t* const position = rows_.rows[row].find(tensor, in_key);
      if (position == nullptr) return miss(pattern.key(in_key));
      const auto stacked = leading_axes(patterns_[row], pattern, from);
      const Shape& size = source_.tensors[*position].global_shape();
      require_stacked(size, stacked, source_.tensors[*position].key);
      sources.push_back({*position, pick(patterns_[row], instance, stacked)});
      Shape& shape = shapes.emplace_back(size.begin() + std::ssize(stacked), size.end());
      if (from.experts_in_rows) sources.back().first_row = take_expert(row, instance, shape);
    }
    for (const SourceTensor& source : sources) require_whole_elements(row, source.position);
    Relations& known = relations_;
    if (known.row != row || known.from.tensors != shapes) {
      known.row = row;
      const auto steps = [&](const SideForm& form) {
        return steps_without_second_turn(map_.tensors[row], form.steps, numbers_);
      };
      known.from = relate(steps(from), shapes, padded_rows(from, shapes), numbers);
      const SideForm& to = to_.form(row);
      known.to =
          relate(steps(to), tensors_of(to.steps, to.tensors.size(), known.from.whole, numbers),
                 known.from.whole.empty() ? 0 : known.from.whole.front(), numbers);
      if (known.to.whole != known.from.whole)
        throw_error(ErrorCode::kMismatch, "the shape {} became {}", to_string(known.from.whole),
                    to_string(known.to.whole));
      known.common = common_pieces();
    }
    require_extents(map_.tensors[row], known.from.whole, numbers);
    if (result_.sides.from != result_.sides.to && map_.is_megatrons()) {
      require_axes(map_.tensors[row], known.from.whole);
      require_padding(map_.tensors[row], known.from.whole, numbers);
      if (!map_.towers.have(map_.tensors[row].megatron))
        require_heads(map_.tensors[row], known.from.whole, numbers);
    }
    if (to_.is_megatron() && to_.layout() == MegatronLayout::kSingleton && map_.is_megatrons() &&
        !map_.towers.have(map_.tensors[row].megatron))
      require_halves(map_.tensors[row], known.from.whole, numbers);
    std::optional<std::int64_t> rows;
    if (has_step(map_.tensors[row].hf.transform, MapStep::kPadRows) && !known.from.whole.empty()) {
      result_.counts.padded_rows = known.from.whole.front();
      for (const RelationPiece& piece : known.to.pieces) {
        if (piece.tensor == RelationPiece::kPadding) rows = piece.box.offsets.front();
      }
    }
    compose(row, instance, sources);
    for (const SourceTensor& source : sources) {
      used_.emplace(source.position, rows);
      const MapRow& entry = map_.tensors[row];
      const TensorStorageMetadata& stored = source_.tensors[source.position];
      if (entry.cast != MapCast{} || entry.add != MapAdd{} || target_.dtype)
        result_.spelling.dtypes.emplace(*rows_.prefix.key(stored.key), stored.properties.dtype);
    }
  }

  /// Reduces the shape of all experts to that of one, and returns the first row of this expert.
  std::int64_t take_expert(std::size_t row, const RowNumbers& instance, Shape& shape) const {
    const std::int64_t experts = rows_.counts.at(kExpert);
    if (shape.empty() || shape.front() % experts != 0)
      throw_error(ErrorCode::kMismatch,
                  "the shape {} cannot be divided into the rows of {} experts", to_string(shape),
                  experts);
    shape.front() /= experts;
    return pick(patterns_[row], instance, {kExpert}).front() * shape.front();
  }

  /// Reports a missing key once, even if the tensor has several layers.
  void miss(std::string key) {
    if (const auto [name, inserted] = missed_.insert(std::move(key)); inserted)
      completeness_.missing.add(*name);
  }

  /// Returns the rows of a vocabulary that is padded on the way to Megatron; 0 if it is not.
  std::int64_t padded_rows(const SideForm& form, const std::vector<Shape>& shapes) const {
    if (rows_.side.names != KeyNames::kHf || shapes.front().empty() ||
        !has_step(form.steps, MapStep::kPadRows))
      return 0;
    return !to_.is_megatron() ? shapes.front().front() : numbers_.require("padded_vocab_size");
  }

  void require_stacked(const Shape& size, const std::vector<std::string>& stacked,
                       const std::string& key) const {
    bool fits = size.size() >= stacked.size();
    for (std::size_t i = 0; fits && i < stacked.size(); ++i)
      fits = size[i] == rows_.counts.at(stacked[i]);
    if (fits) return;
    std::string expected;
    for (const std::string& name : stacked)
      expected += str_format("{}{} {}", expected.empty() ? "" : " and ", rows_.counts.at(name),
                             name == kExpert ? "experts" : "layers");
    throw_error(ErrorCode::kMismatch, "{} has the shape {}, expected leading axes for {}",
                quote(key), to_string(size), expected);
  }

  /// Refuses to split elements that share bytes: they stay together only where rows of a matrix
  /// move.
  void require_whole_elements(std::size_t row, std::uint32_t position) const {
    const TensorStorageMetadata& tensor = source_.tensors[position];
    if (packed_values(tensor.properties.dtype) == 1) return;
    const std::vector<MapTransform>& from =
        rows_.side.rows[row][rows_.rows[row].form.value_or(0)].steps;
    const std::vector<MapTransform>& to = to_.form(row).steps;
    const bool moves = !from.empty() || !to.empty();
    const bool changes_axes = std::ranges::any_of(
        std::array{MapStep::kTranspose, MapStep::kSqueeze},
        [&](MapStep step) { return has_step(from, step) || has_step(to, step); });
    if (!changes_axes && (!moves || tensor.global_shape().size() > 1)) return;
    throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                "the map {} would take apart elements of 4 or 6 bits that share bytes; "
                "dequantize the tensor with the library that wrote it, or leave it out",
                quote(map_.family));
  }

  /// Checks that there are as many rows and columns as the configuration says, if it does.
  static void require_extents(const MapRow& row, const Shape& whole, const MapNumbers& numbers) {
    const auto require = [&](const std::string& number, std::int64_t extent, const char* what) {
      const auto said = number.empty() ? std::nullopt : numbers.find(number);
      if (!said || extent == *said) return;
      throw_error(ErrorCode::kMismatch, "there are {} {}, but {}", extent, what,
                  numbers.describe(number));
    };
    if (whole.empty()) return;
    require(row.columns, whole.back(), "columns");
    require(row.rows, whole.front(), "rows");
  }

  /// Returns the overlaps of the two relations' pieces, which are the parts.
  std::vector<Common> common_pieces() const {
    std::vector<Common> result;
    for (std::size_t to = 0; to < relations_.to.pieces.size(); ++to) {
      for (std::size_t from = 0; from < relations_.from.pieces.size(); ++from) {
        auto box = intersect(relations_.to.pieces[to].box, relations_.from.pieces[from].box);
        if (box) result.push_back({to, from, *std::move(box)});
      }
    }
    return result;
  }

  void compose(std::size_t row, const RowNumbers& instance,
               const std::vector<SourceTensor>& sources) {
    std::vector<std::optional<std::size_t>> made(relations_.to.tensors.size());
    if ((parts_ += relations_.common.size()) > kMaxParts)
      throw_error(ErrorCode::kUnsupported, "the map cuts the tensors into more than {} parts",
                  grouped(kMaxParts));
    for (const RelationPiece& to : relations_.to.pieces) {
      if (to.tensor == RelationPiece::kPadding)
        result_.counts.padding_in += static_cast<std::uint64_t>(numel(to.box.sizes));
      else if (!made[to.tensor])
        made[to.tensor] = target_tensor(row, to.tensor, instance, sources.front());
    }
    for (const Common& common : relations_.common) {
      const RelationPiece& from = relations_.from.pieces[common.from];
      const RelationPiece& to = relations_.to.pieces[common.to];
      if (to.tensor == RelationPiece::kPadding) continue;
      RearrangedTensor& tensor = made_[*made[to.tensor]].tensor;
      if (from.tensor != RelationPiece::kPadding)
        convert(map_.tensors[row], sources[from.tensor].position, tensor.properties.dtype);
      tensor.parts.push_back(part(row, to, from, common.box, instance, sources));
    }
  }

  /// Returns the dtype of the tensor `key` whose elements are stored as `stored`.
  DType dtype_of(const MapRow& row, const std::string& key, DType stored) {
    if (partial_) return stored;  // state has a type of its own
    if (const auto was = target_.way_back.dtypes.find(key); was != target_.way_back.dtypes.end())
      return was->second;
    const DType usual = (to_.is_megatron() ? row.cast.of_left() : row.cast.hf).value_or(stored);
    if (!target_.dtype || usual == *target_.dtype) return usual;
    const std::string why = why_type_stays(row, to_.names(), stored, *target_.dtype);
    if (why.empty()) return *target_.dtype;
    other_types_[str_format("{}, as {}", to_string(usual), why)].add(key);
    return usual;
  }

  /// Returns the constant that is added on the way to the result.
  float added(const MapRow& row) const {
    if (partial_ || rows_.side.names == to_.names() ||
        (!row.add.only_if.empty() && !numbers_.is_true(row.add.only_if)))
      return 0;
    return to_.is_megatron() ? row.add.value : -row.add.value;
  }

  /// Records the conversion of a source's elements that go into a tensor of dtype `to`.
  void convert(const MapRow& row, std::uint32_t position, DType to) {
    const TensorStorageMetadata& source = source_.tensors[position];
    const DType from = source.properties.dtype;
    const ElementConversion conversion{to, added(row), row.add.rounded};
    if (from == to && conversion.add == 0) return;
    const auto [known, inserted] = result_.conversions.emplace(position, conversion);
    if (known->second != conversion)
      throw_error(ErrorCode::kMismatch, "{} would become {} and {}", quote(source.key),
                  to_string(known->second.dtype), to_string(to));
  }

  TensorPart part(std::size_t row, const RelationPiece& to, const RelationPiece& from,
                  const StridedBox& common, const RowNumbers& instance,
                  const std::vector<SourceTensor>& sources) {
    const SideForm& form = to_.form(row);
    const RowNumbers to_prefix = pick(
        patterns_[row], instance, leading_axes(patterns_[row], to_.pattern(row, to.tensor), form));
    StridedBox target = place_in_tensor(to, common);
    if (form.experts_in_rows)
      target.offsets.front() += pick(patterns_[row], instance, {kExpert}).front() *
                                relations_.to.tensors[to.tensor].front();
    TensorPart part{.target = behind(to_prefix, target.box()),
                    .target_steps = steps_behind(to_prefix, target)};
    if (from.tensor == RelationPiece::kPadding) {
      part.elements = TensorPart::Elements::kZeros;
      result_.counts.padding_out += static_cast<std::uint64_t>(numel(common.sizes));
      return part;
    }
    const SourceTensor& source = sources[from.tensor];
    part.tensor = source.position;
    StridedBox place = place_in_tensor(from, common);
    if (!place.offsets.empty()) place.offsets.front() += source.first_row;
    part.source = behind(source.prefix, place.box());
    part.source_steps = steps_behind(source.prefix, place);
    part.axes.assign(part.target.dims(), kNoAxis);
    for (std::size_t axis = 0; axis < common.sizes.size(); ++axis)
      part.axes[to_prefix.size() + to.axes[axis]] =
          static_cast<std::int32_t>(source.prefix.size() + from.axes[axis]);
    return part;
  }

  static Box behind(const RowNumbers& prefix, Box box) {
    box.offsets.insert(box.offsets.begin(), prefix.begin(), prefix.end());
    box.sizes.insert(box.sizes.begin(), prefix.size(), 1);
    return box;
  }

  /// Returns the steps behind the leading axes; empty if all entries are adjacent.
  static Shape steps_behind(const RowNumbers& prefix, const StridedBox& box) {
    if (std::ranges::all_of(box.steps, [](std::int64_t step) { return step == 1; })) return {};
    Shape steps = box.steps;
    steps.insert(steps.begin(), prefix.size(), 1);
    return steps;
  }

  std::size_t target_tensor(std::size_t row, std::size_t tensor, const RowNumbers& instance,
                            const SourceTensor& like) {
    const KeyPattern& pattern = to_.pattern(row, tensor);
    const RowNumbers in_key = pick(patterns_[row], instance, pattern.numbers());
    std::string key = pattern.key(in_key);
    const SideForm& form = to_.form(row);
    Shape shape = relations_.to.tensors[tensor];
    if (form.experts_in_rows) shape.front() *= rows_.counts.at(kExpert);
    const auto [found, inserted] = by_key_.try_emplace(key, made_.size());
    const auto owner = std::tuple(row, tensor, in_key);
    if (!inserted) {
      if (made_[found->second].owner != owner)
        throw_error(ErrorCode::kMismatch, quote(key) + " is made twice");
      require_equal(ShapeView(made_[found->second].tensor.size).last(shape.size()), shape, key);
      return found->second;
    }
    Made made{.owner = owner, .place = place_of(row, instance)};
    RearrangedTensor& result = made.tensor;
    result.properties = source_.tensors[like.position].properties;
    result.properties.dtype = dtype_of(map_.tensors[row], key, result.properties.dtype);
    result.key = std::move(key);
    for (const std::string& name : leading_axes(patterns_[row], pattern, form))
      result.size.push_back(rows_.counts.at(name));
    result.size.insert(result.size.end(), shape.begin(), shape.end());
    made_.push_back(std::move(made));
    return found->second;
  }

  /// Checks that layers or experts that are axes of one tensor have the same shape.
  void require_equal(ShapeView first, ShapeView shape, const std::string& key) const {
    if (equal(first, shape)) return;
    throw_error(ErrorCode::kMismatch, "{} would have layers or experts of the shapes {} and {}{}",
                quote(key), to_string(first), to_string(shape),
                to_.is_megatron() && to_.layout() != MegatronLayout::kSingleton
                    ? "; choose layout=non-homogeneous or layout=singleton"
                    : "");
  }

  /// Returns the sort key of an instance: layers follow each other, between the rows before and
  /// after them.
  std::tuple<int, std::int64_t, std::size_t> place_of(std::size_t row,
                                                      const RowNumbers& instance) const {
    const auto is_layered = [](const KeyPattern& pattern) { return pattern.has(kLayer); };
    if (is_layered(patterns_[row])) return {1, pick(patterns_[row], instance, {kLayer})[0], row};
    const auto first = std::ranges::find_if(patterns_, is_layered) - patterns_.begin();
    return {static_cast<std::ptrdiff_t>(row) < first ? 0 : 2, 0, row};
  }

  /// Adds the extra states of `module`, which these row instances share.
  void add_extra_states(const std::string& module, const std::vector<RowNumbers>& all) {
    if (!to_.is_megatron() || !modules_.insert(module).second) return;
    const KeyPattern row(module);
    for (const RowNumbers& instance : all)
      result_.extra_states.push_back({extra_state(row, instance, to_.layout()),
                                      extra_state(row, instance, result_.sides.from_layout)});
  }

  std::string extra_state(const KeyPattern& module, const RowNumbers& instance,
                          MegatronLayout layout) const {
    const KeyPattern pattern = in_layout(module, layout);
    std::string position, grid;
    for (const std::string& name : stacked_numbers(module, pattern)) {
      position += (position.empty() ? "" : ".") + std::to_string(pick(module, instance, {name})[0]);
      grid += (grid.empty() ? "" : ".") + std::to_string(rows_.counts.at(name));
    }
    if (grid.empty()) position = "0", grid = "1";
    return str_format("{}._extra_state/shard_{}_{}",
                      pattern.key(pick(module, instance, pattern.numbers())), position, grid);
  }

  void finish() {
    for (const std::string& any : map_.extra_states) {
      const std::string module = with_steps(map_, any);
      add_extra_states(module, instances(KeyPattern(module), kind_with(map_, module)));
    }
    const KeyPrefix prefix = to_.prefix();
    for (Made& made : made_) made.tensor.key = prefix.stored_key(made.tensor.key);
    for (ExtraState& state : result_.extra_states) state.key = prefix.stored_key(state.key);
    std::ranges::stable_sort(made_, {}, &Made::place);
    for (Made& made : made_) {
      result_.counts.elements_out += static_cast<std::uint64_t>(numel(made.tensor.size));
      result_.tensors.push_back(std::move(made.tensor));
      result_.rows.push_back(std::get<0>(made.owner));
    }
    for (const auto& [why, keys] : other_types_) {
      for (AlikeKeys& kept : keys.groups(why)) result_.left.other_types.push_back(std::move(kept));
    }
    for (std::size_t i = 0; i < source_.tensors.size(); ++i) {
      const auto used = used_.find(static_cast<std::uint32_t>(i));
      if (used == used_.end()) continue;
      result_.counts.elements_in +=
          static_cast<std::uint64_t>(numel(source_.tensors[i].global_shape()));
      result_.left.kept.emplace_back(*used);
    }
  }

  /// The relations of the last shapes, which all layers of a row share.
  struct Relations {
    std::size_t row = SIZE_MAX;
    Relation from{};
    Relation to{};
    std::vector<Common> common{};
  };

  struct Made {
    std::tuple<std::size_t, std::size_t, RowNumbers> owner;
    std::tuple<int, std::int64_t, std::size_t> place;
    RearrangedTensor tensor{};
  };

  static constexpr std::uint64_t kMaxParts = 50'000'000;

  const KeyMap& map_;
  const MapNumbers& numbers_;
  const Metadata& source_;
  const SourceRows& rows_;
  const MapTarget& target_;
  bool partial_;
  MappedKeys& result_;
  Completeness& completeness_;
  TargetSide to_;
  std::vector<KeyPattern> patterns_;     // rows by Megatron's names
  bool differs_by_layer_ = false;        // some numbers do
  std::optional<std::int64_t> layer_{};  // the last layer, and its numbers
  std::optional<MapNumbers> of_layer_{};
  Relations relations_;
  std::vector<Made> made_;
  std::unordered_map<std::string, std::size_t> by_key_;
  std::map<std::uint32_t, std::optional<std::int64_t>> used_;  // rows that are not padding
  std::set<std::string> modules_;
  std::set<std::string> missed_;
  std::map<std::string, KeyGroups> other_types_;  // keys by dtype and reason
  std::uint64_t parts_ = 0;
};

}  // namespace

void arrange_rows(const AssignedSource& source, const MapTarget& target, MappedKeys& result,
                  Completeness& completeness) {
  Arrangement(source, target, result, completeness).run();
}

}  // namespace dckpt
