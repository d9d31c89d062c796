#include "operations/inspect/diff.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "dist_checkpointing/ranks/shared_work.h"
#include "dist_checkpointing/verify/still_files.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/tree.h"
#include "operations/inspect/compare_elements.h"
#include "operations/inspect/compare_values.h"
#include "operations/inspect/differences.h"
#include "operations/inspect/element.h"
#include "operations/inspect/extract/render.h"
#include "operations/inspect/layer_names.h"
#include "operations/inspect/stream.h"

namespace dckpt {
namespace {

/// Returns the index of the element at a position of the C order.
Shape unravel(std::uint64_t position, ShapeView shape) {
  Shape index(shape.size(), 0);
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = static_cast<std::int64_t>(position % static_cast<std::uint64_t>(shape[axis]));
    position /= static_cast<std::uint64_t>(shape[axis]);
  }
  return index;
}

/// Positions of the entries that both sides have, and of those that only one side has, in lists of
/// entries with a `key`.
struct Matching {
  std::vector<std::pair<std::size_t, std::size_t>> both;
  std::vector<std::size_t> only_a;
  std::vector<std::size_t> only_b;
};

template <typename Entry>
Matching match(const std::vector<Entry>& a, const std::vector<Entry>& b, const KeyFilter& filter) {
  const auto keys = [&](const std::string& key) {
    return std::is_same_v<Entry, BytesStorageMetadata> ? filter.object(key) : filter(key);
  };
  std::unordered_map<std::string_view, std::size_t> positions;
  for (std::size_t i = 0; i < b.size(); ++i) positions.emplace(b[i].key, i);
  Matching matching;
  std::vector<bool> matched(b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!keys(a[i].key)) continue;
    const auto found = positions.find(a[i].key);
    if (found == positions.end()) {
      matching.only_a.push_back(i);
    } else {
      matching.both.emplace_back(i, found->second);
      matched[found->second] = true;
    }
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (!matched[i] && keys(b[i].key)) matching.only_b.push_back(i);
  }
  return matching;
}

std::string describe(const TensorStorageMetadata& tensor) {
  return str_format("{} {}", to_string(tensor.properties.dtype), to_string(tensor.global_shape()));
}
std::string describe(const BytesStorageMetadata& object) {
  return "object of " + human_bytes(object.place.length);
}

/// Compares pieces that arrive in C order, and counts the elements that differ in each of `rows`
/// equal parts.
class RowComparison {
 public:
  RowComparison(ElementComparison& elements, std::uint64_t bytes, std::size_t rows)
      : elements_(elements), row_bytes_(bytes / rows), counts_(rows) {}

  void compare(ByteView a, ByteView b) {
    while (!a.empty()) {
      const std::uint64_t rest = row_bytes_ - at_ % row_bytes_;
      const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(rest, a.size()));
      const std::uint64_t before = elements_.count();
      elements_.compare(a.first(size), b.first(size));
      counts_[at_ / row_bytes_] += elements_.count() - before;
      at_ += size;
      a = a.subspan(size);
      b = b.subspan(size);
    }
  }
  const std::vector<std::uint64_t>& counts() const { return counts_; }

 private:
  ElementComparison& elements_;
  std::uint64_t row_bytes_;
  std::uint64_t at_ = 0;
  std::vector<std::uint64_t> counts_;
};

/// Returns the number of layers along the first axis of a tensor; 1 if it does not hold several.
std::size_t layers_in(const TensorStorageMetadata& tensor) {
  const Shape& shape = tensor.global_shape();
  const bool stacked = !shape.empty() && shape[0] > 1 && numel(shape) > 0 &&
                       shape[0] < static_cast<std::int64_t>(kMostLayers) && stack_of(tensor.key);
  return stacked ? static_cast<std::size_t>(shape[0]) : 1;
}

class CheckpointComparer {
 public:
  CheckpointComparer(const CheckpointReader& a, const CheckpointReader& b,
                     const DiffOptions& options, Communicator& comm)
      : a_(a),
        b_(b),
        options_(options),
        work_(comm, "comparing the checkpoints", options.threads, options.progress),
        a_still_(a),
        b_still_(b) {
    if (options.rtol || options.atol)
      tolerance_ = Tolerance{options.rtol.value_or(0), options.atol.value_or(0)};
  }

  DiffReport compare() {
    work_.on_all_ranks([&] { choose(); });
    std::vector<std::uint64_t> sizes;
    for (const auto& [a, b] : tensors_.both) sizes.push_back(a_.metadata().tensors[a].nbytes());
    for (const auto& [a, b] : objects_.both) sizes.push_back(a_.metadata().objects[a].place.length);
    if (options_.common) sizes.push_back(0);
    std::vector<Differences> found =
        work_.share<Differences>(sizes, [&](std::size_t unit) { return compare_unit(unit); });
    work_.on_all_ranks([&] {
      a_still_.require_unchanged();
      b_still_.require_unchanged();
    });

    DiffReport report{.tensors_compared = tensors_.both.size(),
                      .objects_compared = objects_.both.size()};
    std::size_t unit = 0;
    const auto add_until = [&](std::size_t end) {
      for (; unit < end; ++unit)
        std::ranges::move(found[unit].found, std::back_inserter(report.differences));
    };
    add_until(tensors_.both.size());
    report_lonely(report, tensors_, a_.metadata().tensors, b_.metadata().tensors);
    add_until(tensors_.both.size() + objects_.both.size());
    report_lonely(report, objects_, a_.metadata().objects, b_.metadata().objects);
    add_until(found.size());
    report.common_compared = options_.common && found.back().compared;
    return report;
  }

 private:
  /// Lists what both sides have, and what only one has.
  void choose() {
    options_.keys.check({&a_.metadata(), &b_.metadata()});
    const bool paths_a = a_.info().conventions.keys_are_paths;
    const bool paths_b = b_.info().conventions.keys_are_paths;
    a_has_paths_ = paths_a && !paths_b && !b_.common_state().is_none();
    b_has_paths_ = paths_b && !paths_a && !a_.common_state().is_none();
    tensors_ = match(a_.metadata().tensors, b_.metadata().tensors, options_.keys);
    objects_ = match(a_.metadata().objects, b_.metadata().objects, options_.keys);
    std::erase_if(objects_.only_a, [&](std::size_t i) {
      return a_has_paths_ && is_plain(a_.metadata().objects[i].key);
    });
    std::erase_if(objects_.only_b, [&](std::size_t i) {
      return b_has_paths_ && is_plain(b_.metadata().objects[i].key);
    });
  }

  template <typename Entry>
  static void report_lonely(DiffReport& report, const Matching& matching,
                            const std::vector<Entry>& a, const std::vector<Entry>& b) {
    for (const std::size_t i : matching.only_a)
      report.differences.push_back(
          {.kind = Difference::Kind::kOnlyInA, .key = a[i].key, .a = describe(a[i])});
    for (const std::size_t i : matching.only_b)
      report.differences.push_back(
          {.kind = Difference::Kind::kOnlyInB, .key = b[i].key, .b = describe(b[i])});
  }

  /// Compares a tensor, an object, or the common state, in this order.
  Differences compare_unit(std::size_t unit) {
    if (unit < tensors_.both.size()) {
      const auto [a, b] = tensors_.both[unit];
      std::optional<Difference> found =
          with_context({.key = a_.metadata().tensors[a].key},
                       [&, a = a, b = b] { return compare_tensor(a, b); });
      return found ? Differences{.found = {std::move(*found)}} : Differences{};
    }
    unit -= tensors_.both.size();
    if (unit == objects_.both.size()) return compare_common();
    const auto [a, b] = objects_.both[unit];
    return compare_objects(a, b);
  }

  std::optional<Difference> compare_tensor(std::size_t a, std::size_t b) {
    const TensorStorageMetadata& of_a = a_.metadata().tensors[a];
    const TensorStorageMetadata& of_b = b_.metadata().tensors[b];
    const Shape& shape = of_a.global_shape();
    if (!equal(shape, of_b.global_shape())) {
      return Difference{.kind = Difference::Kind::kShape,
                        .key = of_a.key,
                        .a = to_string(shape),
                        .b = to_string(of_b.global_shape())};
    }
    const DType dtype = of_a.properties.dtype;
    if (dtype != of_b.properties.dtype) {
      return Difference{.kind = Difference::Kind::kDType,
                        .key = of_a.key,
                        .a = std::string(to_string(dtype)),
                        .b = std::string(to_string(of_b.properties.dtype))};
    }
    const StreamOptions stream{.piece = options_.memory / 2 /
                                        static_cast<std::uint64_t>(std::max(options_.threads, 1))};
    TensorStream pieces_a(a_, a, stream);
    TensorStream pieces_b(b_, b, stream);
    ElementComparison comparison(dtype, tolerance_);
    RowComparison rows(comparison, of_a.nbytes(), layers_in(of_a));
    while (const std::optional<Tensor> piece_a = pieces_a.next()) {
      const std::optional<Tensor> piece_b = pieces_b.next();
      rows.compare(piece_a->bytes(), piece_b->bytes());
      work_.add(piece_a->nbytes());
    }
    if (!comparison.first()) return std::nullopt;
    return Difference{
        .kind = Difference::Kind::kValues,
        .key = of_a.key,
        .elements = ElementDifferences{
            .count = comparison.count(),
            .elements = static_cast<std::uint64_t>(numel(shape)),
            .first = unravel(comparison.first()->position, shape),
            .first_a = to_string(load_element(dtype, comparison.first()->a)),
            .first_b = to_string(load_element(dtype, comparison.first()->b)),
            .max_abs = comparison.max_abs(),
            .by_layer = rows.counts().size() > 1 ? rows.counts() : std::vector<std::uint64_t>()}};
  }

  Differences compare_objects(std::size_t a, std::size_t b) {
    const BytesStorageMetadata& of_a = a_.metadata().objects[a];
    const BytesStorageMetadata& of_b = b_.metadata().objects[b];
    const Value value_a = with_context({.key = of_a.key}, [&] { return render(a_.object(a)); });
    const Value value_b = with_context({.key = of_b.key}, [&] { return render(b_.object(b)); });
    work_.add(of_a.place.length);
    return compare_rendered(Difference::Kind::kObject, of_a.key, value_a, value_b);
  }

  Differences compare_common() const {
    const auto rendered = [](const CheckpointReader& reader, bool has_paths, bool other_has) {
      Value common = has_paths ? with_plain_values(reader) : reader.common_state();
      if (other_has != has_paths) common = as_dcp_keeps_it(common, "", tensor_keys(reader));
      return common.is_none() ? common : render(common);
    };
    const Value common_a = rendered(a_, a_has_paths_, b_has_paths_);
    const Value common_b = rendered(b_, b_has_paths_, a_has_paths_);
    if (common_a.is_none() && common_b.is_none()) return {.compared = false};
    const auto or_empty = [](const Value& common) {
      return common.is_none() ? Value::dict() : common;
    };
    return compare_rendered(Difference::Kind::kCommon, "", or_empty(common_a), or_empty(common_b));
  }

  static std::set<std::string> tensor_keys(const CheckpointReader& reader) {
    std::set<std::string> keys;
    for (const TensorStorageMetadata& tensor : reader.metadata().tensors) keys.insert(tensor.key);
    return keys;
  }

  /// Returns a value as DCP preserves it: without classes of dicts, with keys as text, and without
  /// dicts and lists that contain only tensors. render(), which comes next, bounds the depth.
  static Value as_dcp_keeps_it(const Value& value, const std::string& prefix,
                               const std::set<std::string>& tensors, std::size_t depth = 0) {
    const auto* const items = mapping_items(value);
    if (items == nullptr || depth > kMaxTreeDepth) return value;
    Dict kept;
    for (const auto& [key, item] : *items) {
      const std::optional<std::string> text = key_text(key);
      const std::string name = prefix + text.value_or("");
      Value inner = as_dcp_keeps_it(item, name + ".", tensors, depth + 1);
      const bool emptied = (inner.is_dict() && inner.size() == 0) ||
                           (inner.is_list() && std::ranges::all_of(inner.items(), &Value::is_none));
      const auto below = tensors.lower_bound(name + ".");
      if (emptied && below != tensors.end() && below->starts_with(name + ".")) continue;
      kept.set(text ? Value(*text) : key, std::move(inner));
    }
    return Value(std::move(kept));
  }

  static bool is_plain(const std::string& key) { return !ShardedObject::is_unique_key(key); }

  /// Returns the common state with the objects that a plain DCP directory has in its place.
  static Value with_plain_values(const CheckpointReader& reader) {
    const Metadata& metadata = reader.metadata();
    const std::unordered_map<std::string, KeyPath> paths(metadata.paths.begin(),
                                                         metadata.paths.end());
    std::vector<std::pair<KeyPath, Value>> leaves;
    for (std::size_t i = 0; i < metadata.objects.size(); ++i) {
      const std::string& key = metadata.objects[i].key;
      if (!is_plain(key)) continue;
      const auto path = paths.find(key);
      leaves.emplace_back(path == paths.end() ? KeyPath{key} : path->second,
                          with_context({.key = key}, [&] { return reader.object(i); }));
    }
    Value common = reader.common_state();
    if (leaves.empty()) return common;
    if (common.is_none()) common = Value::dict();
    return merge(std::move(common), unflatten_state_dict(leaves));
  }

  Differences compare_rendered(Difference::Kind kind, const std::string& key, const Value& a,
                               const Value& b) const {
    Differences differences;
    for (ValueDifference& found : compare_values(a, b, tolerance_, kMaxDifferencesPerValue)) {
      differences.found.push_back({.kind = kind,
                                   .key = key,
                                   .path = std::move(found.path),
                                   .a = std::move(found.a),
                                   .b = std::move(found.b)});
    }
    return differences;
  }

  const CheckpointReader& a_;
  const CheckpointReader& b_;
  const DiffOptions& options_;
  std::optional<Tolerance> tolerance_;
  // True if plain values are objects under their paths here, and common state on the other side.
  bool a_has_paths_ = false;
  bool b_has_paths_ = false;
  Matching tensors_{};
  Matching objects_{};
  SharedWork work_;
  const StillFiles a_still_;
  const StillFiles b_still_;
};

}  // namespace

const char* to_string(Difference::Kind kind) noexcept {
  static constexpr std::array kNames = {"only-in-a", "only-in-b", "dtype", "shape",
                                        "values",    "object",    "common"};
  return kNames[static_cast<std::size_t>(kind)];
}

DiffReport diff(const CheckpointReader& a, const CheckpointReader& b, const DiffOptions& options) {
  return diff(a, b, options, *single_rank());
}

DiffReport diff(const CheckpointReader& a, const CheckpointReader& b, const DiffOptions& options,
                Communicator& comm) try {
  return CheckpointComparer(a, b, options, comm).compare();
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
