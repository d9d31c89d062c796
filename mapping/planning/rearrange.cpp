#include "mapping/planning/rearrange.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/planning/progression.h"
#include "mapping/planning/validate.h"

namespace dckpt {
namespace {

[[noreturn]] void refuse(const RearrangedTensor& tensor, const std::string& why) {
  throw_error(ErrorCode::kMismatch, {.key = tensor.key},
              "the parts that are to make up this tensor do not fit: " + why);
}

Progression positions(const Box& box, const Shape& steps, std::size_t axis) {
  return {box.offsets[axis], box.sizes[axis], steps.empty() ? 1 : steps[axis]};
}

/// Returns the box from the first entry of a box to the last one, with the elements in between.
Box hull(const Box& box, const Shape& steps) {
  Box result = box;
  for (std::size_t axis = 0; axis < steps.size(); ++axis)
    result.sizes[axis] = box.sizes[axis] == 0 ? 0 : (box.sizes[axis] - 1) * steps[axis] + 1;
  return result;
}

/// Returns whether there is one step for each axis, and the last entry is inside a tensor of this
/// shape.
bool fits(const Box& box, const Shape& steps, ShapeView shape) {
  if (!is_valid(box) || box.dims() != shape.size()) return false;
  if (!steps.empty()) {
    if (steps.size() != box.dims()) return false;
    for (std::size_t axis = 0; axis < steps.size(); ++axis) {
      if (steps[axis] < 1 || !checked_mul(box.sizes[axis], steps[axis])) return false;
    }
  }
  return fits(hull(box, steps), shape);
}

std::string describe(const Box& box, const Shape& steps) {
  const bool adjacent = std::ranges::all_of(steps, [](std::int64_t step) { return step == 1; });
  return adjacent ? to_string(box)
                  : str_format("{} in steps of {}", to_string(hull(box, steps)), to_string(steps));
}

/// Fills in the axes of a part, and checks it against its tensor and its source.
void check_part(const Metadata& source, const RearrangedTensor& tensor, TensorPart& part) {
  if (!fits(part.target, part.target_steps, tensor.size))
    refuse(tensor, str_format("{} lies outside the shape {}",
                              describe(part.target, part.target_steps), to_string(tensor.size)));
  if (part.elements != TensorPart::Elements::kByAxis &&
      !(part.target_steps.empty() && part.source_steps.empty()))
    refuse(tensor, "parts that are not taken by axis have steps");
  if (part.elements == TensorPart::Elements::kZeros) return;
  const TensorStorageMetadata& from = source.tensors.at(part.tensor);
  const auto name = [&] {
    return str_format("{} of {}", describe(part.source, part.source_steps), quote(from.key));
  };
  if (!fits(part.source, part.source_steps, from.global_shape()))
    refuse(tensor,
           str_format("{} is wanted, but its shape is {}", name(), to_string(from.global_shape())));
  if (from.properties.dtype != tensor.properties.dtype)
    refuse(tensor,
           str_format("{} is {}, but the tensor is {}", name(), to_string(from.properties.dtype),
                      to_string(tensor.properties.dtype)));
  if (part.elements == TensorPart::Elements::kInOrder) {
    if (numel(part.target.sizes) == numel(part.source.sizes)) return;
  } else {
    if (part.axes.empty() && part.source.dims() == part.target.dims()) {
      for (std::size_t axis = 0; axis < part.target.dims(); ++axis)
        part.axes.push_back(static_cast<std::int32_t>(axis));
    }
    Shape rest = part.source.sizes;  // extents of the axes that `axes` does not name
    bool same = part.axes.size() == part.target.dims();
    for (std::size_t axis = 0; same && axis < part.target.dims(); ++axis) {
      const std::int32_t from_axis = part.axes[axis];
      if (from_axis == kNoAxis) {
        same = part.target.sizes[axis] == 1;
      } else {
        const auto position = static_cast<std::size_t>(from_axis);
        same = from_axis >= 0 && position < rest.size() &&
               std::exchange(rest[position], -1) == part.target.sizes[axis];
      }
    }
    if (same &&
        std::ranges::all_of(rest, [](std::int64_t left) { return left == -1 || left == 1; }))
      return;
  }
  refuse(tensor,
         str_format("{} is to become {}", name(), describe(part.target, part.target_steps)));
}

/// Reduces an item to the entries that a box with these steps has; false if none is left.
bool thin_out(ReadItem& item, const Box& box, const Shape& steps) {
  for (std::size_t axis = 0; axis < steps.size(); ++axis) {
    const std::int64_t step = steps[axis];
    if (step == 1) continue;
    const std::int64_t past = (item.offsets[axis] - box.offsets[axis]) % step;
    const std::int64_t skipped = past == 0 ? 0 : step - past;
    if (skipped >= item.sizes[axis]) return false;
    item.offsets[axis] += skipped;
    item.sizes[axis] = (item.sizes[axis] - skipped + step - 1) / step;
    item.source.offset += skipped * item.source.strides[axis];
    item.source.strides[axis] *= step;
  }
  return true;
}

/// Finds the parts of a tensor that alternate on an axis, so that no box has the elements of one
/// alone.
class Turns {
 public:
  explicit Turns(RearrangedTensor& tensor) : tensor_(tensor) { choose_axis(); }

  /// Returns groups of parts, and the box that each covers exactly; groups of a single part are
  /// left out.
  std::vector<std::pair<Box, std::vector<std::size_t>>> groups() const {
    std::vector<std::pair<Box, std::vector<std::size_t>>> result;
    if (!axis_) return result;
    std::vector<std::size_t> order(tensor_.parts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::erase_if(order, [&](std::size_t part) { return numel(box(part).sizes) == 0; });
    std::ranges::sort(order, {}, [&](std::size_t part) { return place(part); });
    for (std::size_t first = 0; first < order.size();) {
      Box all = box(order[first]);
      std::size_t last = first + 1;
      for (; last < order.size() && shares(all, box(order[last])); ++last) {
        const Box next = box(order[last]);
        const std::int64_t end = std::max(all.offsets[*axis_] + all.sizes[*axis_],
                                          next.offsets[*axis_] + next.sizes[*axis_]);
        all.sizes[*axis_] = end - all.offsets[*axis_];
      }
      const std::vector<std::size_t> parts(order.begin() + static_cast<std::ptrdiff_t>(first),
                                           order.begin() + static_cast<std::ptrdiff_t>(last));
      if (parts.size() > 1 || has_steps(tensor_.parts[parts.front()])) {
        require_cover(all, parts);
        result.emplace_back(std::move(all), parts);
      }
      first = last;
    }
    return result;
  }

 private:
  static constexpr std::int64_t kMostSteps = 4096;

  static bool has_steps(const TensorPart& part) {
    return std::ranges::any_of(part.target_steps, [](std::int64_t step) { return step > 1; });
  }

  /// Chooses the first axis on which entries are apart. Parts that are apart on another axis, too,
  /// are cut along it into single entries.
  void choose_axis() {
    std::vector<TensorPart> all;
    for (std::size_t i = 0; i < tensor_.parts.size(); ++i) {
      const TensorPart& part = tensor_.parts[i];
      std::optional<std::size_t> other;
      for (std::size_t axis = 0; axis < part.target_steps.size(); ++axis) {
        if (part.target_steps[axis] == 1) continue;
        if (!axis_) axis_ = axis;
        if (axis != *axis_) other = axis;
      }
      if (other && all.empty())
        all.assign(tensor_.parts.begin(), tensor_.parts.begin() + static_cast<std::ptrdiff_t>(i));
      if (other)
        cut(part, *other, all);
      else if (!all.empty())
        all.push_back(part);
    }
    if (!all.empty()) tensor_.parts = std::move(all);
  }

  static void cut(const TensorPart& part, std::size_t axis, std::vector<TensorPart>& into) {
    const std::int32_t from = part.axes[axis];
    for (std::int64_t i = 0; i < part.target.sizes[axis]; ++i) {
      TensorPart& entry = into.emplace_back(part);
      entry.target.offsets[axis] += i * part.target_steps[axis];
      entry.target.sizes[axis] = entry.target_steps[axis] = 1;
      if (from == kNoAxis) continue;
      const auto at = static_cast<std::size_t>(from);
      entry.source.offsets[at] += i * positions(part.source, part.source_steps, at).step;
      entry.source.sizes[at] = 1;
    }
  }

  Box box(std::size_t part) const {
    return hull(tensor_.parts[part].target, tensor_.parts[part].target_steps);
  }
  /// The sort key of a part: parts that differ only on the axis follow each other.
  std::tuple<Shape, Shape, std::int64_t> place(std::size_t part) const {
    Box at = box(part);
    const std::int64_t begin = std::exchange(at.offsets[*axis_], 0);
    at.sizes[*axis_] = 0;
    return {std::move(at.offsets), std::move(at.sizes), begin};
  }
  bool shares(const Box& a, Box b) const {
    if (b.offsets[*axis_] >= a.offsets[*axis_] + a.sizes[*axis_]) return false;
    b.offsets[*axis_] = a.offsets[*axis_];
    b.sizes[*axis_] = a.sizes[*axis_];
    return a == b;
  }

  /// Checks that every entry of the box on the axis belongs to one part: in steps that all have in
  /// common, the entries with the same remainder are ranges that follow each other.
  void require_cover(const Box& all, const std::vector<std::size_t>& parts) const {
    const auto entries = [&](std::size_t part) {
      return positions(tensor_.parts[part].target, tensor_.parts[part].target_steps, *axis_);
    };
    std::int64_t step = 1;
    for (const std::size_t part : parts) {
      step = std::lcm(step, entries(part).step);
      if (entries(part).step > kMostSteps || step > kMostSteps)
        refuse(tensor_, str_format("rows take turns in steps of more than {}", kMostSteps));
    }
    std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> ranges;
    for (const std::size_t part : parts) {
      Progression left = entries(part);
      const std::int64_t turns = step / left.step;
      for (std::int64_t i = 0; i < std::min(turns, left.count); ++i) {
        const std::int64_t first = left.first - all.offsets[*axis_] + i * left.step;
        const std::int64_t count = (left.count - i + turns - 1) / turns;
        ranges[first % step].emplace_back(first / step, first / step + count);
      }
    }
    const std::int64_t extent = all.sizes[*axis_];
    bool exact = static_cast<std::int64_t>(ranges.size()) == std::min(step, extent);
    for (auto& [remainder, of_it] : ranges) {
      std::ranges::sort(of_it);
      std::int64_t end = 0;
      for (const auto& [first, last] : of_it) {
        exact = exact && first == end;
        end = last;
      }
      exact = exact && end == (extent - remainder + step - 1) / step;
    }
    if (!exact)
      refuse(tensor_,
             str_format("the parts that take turns in {} do not cover it exactly", to_string(all)));
  }

  RearrangedTensor& tensor_;
  std::optional<std::size_t> axis_;
};

class MetadataRearranger {
 public:
  MetadataRearranger(const Metadata& source, std::vector<RearrangedTensor> tensors)
      : source_(source), tensors_(std::move(tensors)) {}

  RearrangedMetadata rearranged() {
    result_.metadata.files = source_.files;
    const std::vector<ReadItem> items = plan();
    std::size_t item = 0;
    std::uint32_t number = 0;
    auto chunk = chunks_.begin();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const RearrangedTensor& tensor = tensors_[i];
      begin(tensor);
      for (const TensorPart& part : tensor.parts) {
        if (part.elements == TensorPart::Elements::kZeros) add_zeros(part.target);
        for (; item < items.size() && items[item].destination == number; ++item)
          part.elements == TensorPart::Elements::kInOrder ? add_in_order(part, items[item])
                                                          : add_by_axis(part, items[item]);
        ++number;
      }
      for (; chunk != chunks_.end() && chunk->first == i; ++chunk)
        add_gathered(std::move(chunk->second));
      finish(tensor);
    }
    return std::move(result_);
  }

 private:
  /// Finds the stored chunks that have the elements of each part, in one plan, which makes an index
  /// of every source tensor once.
  std::vector<ReadItem> plan() {
    std::vector<WantedShard> wanted;
    std::uint32_t number = 0;
    for (RearrangedTensor& tensor : tensors_) {
      if (!checked_numel(tensor.size))
        refuse(tensor, "the shape " + to_string(tensor.size) + " has too many elements");
      for (TensorPart& part : tensor.parts) check_part(source_, tensor, part);
      gather(tensor);
      for (const TensorPart& part : tensor.parts) {
        if (part.elements != TensorPart::Elements::kZeros)
          wanted.push_back({part.tensor, number, hull(part.source, part.source_steps)});
        ++number;
      }
    }
    return plan_reads(source_, wanted);
  }

  /// Moves alternating parts out of the tensor, into chunks of their own.
  void gather(RearrangedTensor& tensor) {
    const auto number = static_cast<std::size_t>(&tensor - tensors_.data());
    std::vector<bool> gathered;
    for (auto& [box, parts] : Turns(tensor).groups()) {
      gathered.resize(tensor.parts.size());
      GatheredChunk chunk{.box = std::move(box), .parts = {}};
      for (const std::size_t part : parts) {
        if (tensor.parts[part].elements != TensorPart::Elements::kByAxis)
          refuse(tensor, "parts that are not taken by axis take turns");
        gathered[part] = true;
        chunk.parts.push_back(tensor.parts[part]);
      }
      chunks_.emplace_back(number, std::move(chunk));
    }
    if (gathered.empty()) return;
    std::vector<TensorPart> rest;
    for (std::size_t part = 0; part < tensor.parts.size(); ++part) {
      if (!gathered[part]) rest.push_back(std::move(tensor.parts[part]));
    }
    tensor.parts = std::move(rest);
  }

  /// Adds a gathered chunk. Its place is inside that of the first stored chunk that has elements of
  /// it, but is not the same, so that the checksum of the stored chunk is not taken for that of
  /// others.
  void add_gathered(GatheredChunk chunk) {
    const auto items = plan_gathering(source_, chunk, 0, 1);
    if (items.empty())
      refuse(tensors_[result_.metadata.tensors.size() - 1],
             str_format("nothing is stored for {}", to_string(chunk.box)));
    ChunkOrigin origin{.tensor = ChunkOrigin::kGathered,
                       .chunk = static_cast<std::uint32_t>(result_.gathered.size()),
                       .elements = {0, row_major_strides(chunk.box.sizes)}};
    StorageInfo place = place_of(items.front());
    std::uint64_t& begin = starts_[{place.file, place.offset}];
    if (begin + 1 < place.length) ++begin;
    place.offset += begin;
    place.length -= begin;
    add(chunk.box, std::move(origin), place);
    result_.gathered.push_back(std::move(chunk));
  }

  void begin(const RearrangedTensor& tensor) {
    result_.metadata.tensors.push_back({.key = tensor.key,
                                        .properties = tensor.properties,
                                        .size = tensor.size,
                                        .chunks = BoxList(tensor.size.size())});
    result_.origins.emplace_back();
  }

  void add(const Box& box, ChunkOrigin origin, const StorageInfo& place) {
    TensorStorageMetadata& tensor = result_.metadata.tensors.back();
    tensor.chunks.push_back(box);
    tensor.places.push_back(place);
    result_.origins.back().push_back(std::move(origin));
  }

  void add_by_axis(const TensorPart& part, ReadItem item) {
    if (!thin_out(item, part.source, part.source_steps)) return;
    Box box = part.target;
    ChunkOrigin origin{item.tensor, item.chunk, {item.source.offset, Shape(box.dims(), 1)}};
    for (std::size_t axis = 0; axis < box.dims(); ++axis) {
      if (part.axes[axis] == kNoAxis) continue;
      const auto from = static_cast<std::size_t>(part.axes[axis]);
      box.offsets[axis] += (item.offsets[from] - part.source.offsets[from]) /
                           positions(part.source, part.source_steps, from).step;
      box.sizes[axis] = item.sizes[from];
      origin.elements.strides[axis] = item.source.strides[from];
    }
    add(box, std::move(origin), place_of(item));
  }

  void add_in_order(const TensorPart& part, const ReadItem& item) {
    const RunPlan runs = plan_runs(item.sizes, item.source, item.target);
    for_each_run(runs, [&](std::int64_t from, std::int64_t position) {
      for (FlatPiece& piece : split_flat_range(part.target.sizes, position, position + runs.run)) {
        for (std::size_t axis = 0; axis < piece.box.dims(); ++axis)
          piece.box.offsets[axis] += part.target.offsets[axis];
        add(piece.box,
            {item.tensor,
             item.chunk,
             {from + piece.begin - position, row_major_strides(piece.box.sizes)}},
            place_of(item));
      }
    });
  }

  /// Adds chunks of zeros: the innermost axes are in the file of zeros as they are, the others all
  /// in the same place.
  void add_zeros(const Box& box) {
    const auto size =
        static_cast<std::int64_t>(item_size(result_.metadata.tensors.back().properties.dtype));
    ChunkOrigin origin{.elements = {0, row_major_strides(box.sizes)}};
    for (std::size_t axis = 0; axis < box.dims(); ++axis) {
      std::int64_t& stride = origin.elements.strides[axis];
      if (box.sizes[axis] >
          static_cast<std::int64_t>(kZerosBytes) / size / std::max<std::int64_t>(stride, 1))
        stride = 0;
    }
    if (!zeros_) {  // a source that was rearranged may have it already
      std::vector<std::string>& files = result_.metadata.files;
      const auto found = std::ranges::find(files, kZerosFile);
      zeros_ = static_cast<std::uint32_t>(found - files.begin());
      if (found == files.end()) files.emplace_back(kZerosFile);
    }
    add(box, std::move(origin), {*zeros_, 0, kZerosBytes});
  }

  const StorageInfo& place_of(const ReadItem& item) const {
    return source_.tensors[item.tensor].places[item.chunk];
  }

  void finish(const RearrangedTensor& tensor) {
    TensorStorageMetadata& made = result_.metadata.tensors.back();
    if (numel(made.size) == 0 && made.chunks.empty()) add(whole(made.size), {}, {});
    const auto problems = validate_coverage(made);
    if (!problems.empty()) refuse(tensor, problems.front().message);
  }

  const Metadata& source_;
  std::vector<RearrangedTensor> tensors_;
  RearrangedMetadata result_;
  std::vector<std::pair<std::size_t, GatheredChunk>> chunks_;  // ordered by their tensors
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> starts_;  // places of gathered
                                                                             // chunks
  std::optional<std::uint32_t> zeros_;
};

/// The requested entries of a part, and their destination.
struct Picked {
  Box source;  ///< with `steps`
  Shape steps;
  StridedView target;  ///< one stride per axis of the source
};

/// Returns the entries of a part in a box of the new tensor, whose elements have the places `lie`.
/// Empty if the box has none of them.
std::optional<Picked> pick(const TensorPart& part, const Box& box, const StridedView& lie) {
  Picked result{
      part.source, Shape(part.source.dims(), 1), {lie.offset, Shape(part.source.dims(), 0)}};
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    const Progression own = positions(part.target, part.target_steps, axis);
    const auto common = intersect(own, {box.offsets[axis], box.sizes[axis], 1});
    if (!common) return std::nullopt;
    result.target.offset += (common->first - box.offsets[axis]) * lie.strides[axis];
    if (part.axes[axis] == kNoAxis) continue;
    const auto from = static_cast<std::size_t>(part.axes[axis]);
    const std::int64_t step = positions(part.source, part.source_steps, from).step;
    result.source.offsets[from] += (common->first - own.first) / own.step * step;
    result.source.sizes[from] = common->count;
    result.steps[from] = common->count == 1 ? 1 : common->step / own.step * step;
    result.target.strides[from] = common->step * lie.strides[axis];
  }
  return result;
}

}  // namespace

std::vector<ReadItem> plan_gathering(const Metadata& source, const GatheredChunk& chunk,
                                     std::int64_t begin, std::int64_t end) {
  std::vector<Picked> picked;
  std::vector<WantedShard> wanted;
  for (const FlatPiece& piece : split_flat_range(chunk.box.sizes, begin, end)) {
    Box box = piece.box;
    for (std::size_t axis = 0; axis < box.dims(); ++axis)
      box.offsets[axis] += chunk.box.offsets[axis];
    const StridedView lie{piece.begin - begin, row_major_strides(box.sizes)};
    for (const TensorPart& part : chunk.parts) {
      std::optional<Picked> entries = pick(part, box, lie);
      if (!entries) continue;
      wanted.push_back({part.tensor, static_cast<std::uint32_t>(picked.size()),
                        hull(entries->source, entries->steps)});
      picked.push_back(*std::move(entries));
    }
  }
  std::vector<ReadItem> items = plan_reads(source, wanted);
  std::erase_if(items, [&](ReadItem& item) {
    const Picked& entries = picked[std::exchange(item.destination, 0)];
    if (!thin_out(item, entries.source, entries.steps)) return true;
    item.target = entries.target;
    for (std::size_t axis = 0; axis < entries.steps.size(); ++axis)
      item.target.offset += (item.offsets[axis] - entries.source.offsets[axis]) /
                            entries.steps[axis] * entries.target.strides[axis];
    return false;
  });
  return items;
}

RearrangedMetadata rearrange(const Metadata& source, std::vector<RearrangedTensor> tensors) {
  return MetadataRearranger(source, std::move(tensors)).rearranged();
}

}  // namespace dckpt
