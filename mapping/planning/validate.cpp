#include "mapping/planning/validate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/reformulation.h"

namespace dckpt {
namespace {

/// The first element (in row-major order of the axes' cuts) that is not in exactly one chunk, and
/// the number of its chunks.
struct Miscount {
  Shape at;
  std::int64_t chunks = 0;
};

/// Counts the boxes that contain each element, exactly, without comparing boxes.
///
/// The number of boxes over an element is a sum of step functions: a box adds +1 to everything at
/// or after its lower corner and takes it back after its upper end, so on each axis it has a signed
/// cut at its first element and one after its last, and in N dimensions a signed corner for each of
/// the 2^N combinations. Steps at different corners are linearly independent: each element lies in
/// exactly one box if and only if the corners of all boxes add up to those of the whole tensor.
/// Where they do not, the first corner in row-major order with a sum that is not zero is an element
/// with a wrong count, because no other such corner lies at or before it on all axes; its sum is
/// the error of the count.
class CornerSums {
 public:
  /// `chosen` are the boxes to count, none of them empty, all inside `size`, which is not empty.
  CornerSums(ShapeView size, const BoxList& boxes, std::span<const std::uint32_t> chosen)
      : size_(size), boxes_(boxes), chosen_(chosen) {
    for (std::size_t axis = 0; axis < size.size(); ++axis) add_axis(axis);
  }

  /// True if there are too many cuts to count.
  bool too_irregular() const {
    return axes_.size() > kMaxAxes || ((chosen_.size() + 1) << axes_.size()) > kMaxCorners ||
           cells() > (std::uint64_t{1} << 63) - 1;
  }

  std::optional<Miscount> first_miscount() const {
    const std::uint64_t corners = (chosen_.size() + 1) << axes_.size();
    if (cells() <= 4 * corners + 1024) {
      std::vector<std::int32_t> sums(cells(), 0);
      for_each_corner([&](std::uint64_t cell, int sign) { sums[cell] += sign; });
      const auto wrong =
          std::find_if(sums.begin(), sums.end(), [](std::int32_t sum) { return sum != 0; });
      if (wrong == sums.end()) return std::nullopt;
      return miscount(static_cast<std::uint64_t>(wrong - sums.begin()), *wrong);
    }
    std::vector<std::uint64_t> signed_cells;  // 2·cell, plus 1 for a negative corner
    signed_cells.reserve(corners);
    for_each_corner([&](std::uint64_t cell, int sign) {
      signed_cells.push_back(2 * cell + (sign < 0 ? 1 : 0));
    });
    std::sort(signed_cells.begin(), signed_cells.end());
    for (std::size_t i = 0; i < signed_cells.size();) {
      const std::uint64_t cell = signed_cells[i] / 2;
      std::int64_t sum = 0;
      for (; i < signed_cells.size() && signed_cells[i] / 2 == cell; ++i)
        sum += signed_cells[i] % 2 == 0 ? 1 : -1;
      if (sum != 0) return miscount(cell, sum);
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kMaxAxes = 20;

  struct Axis {
    std::size_t axis;
    std::vector<std::int64_t> cuts;  // sorted; the first is 0, the last the extent
  };

  /// Axes that no box cuts need no corners.
  void add_axis(std::size_t axis) {
    std::vector<std::int64_t> cuts{0, size_[axis]};
    for (const std::uint32_t box : chosen_) {
      const std::int64_t first = boxes_.offsets(box)[axis];
      const std::int64_t end = first + boxes_.sizes(box)[axis];
      if (cuts[cuts.size() - 2] == first && cuts.back() == end)
        continue;  // the same as the previous box: common on the outer axes
      cuts.push_back(first);
      cuts.push_back(end);
    }
    if (cuts.size() == 2) return;
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    axes_.push_back({axis, std::move(cuts)});
  }

  /// Returns the number of cells; saturates.
  std::uint64_t cells() const {
    std::uint64_t product = 1;
    for (const Axis& axis : axes_)
      product = checked_mul<std::uint64_t>(product, axis.cuts.size()).value_or(UINT64_MAX);
    return product;
  }

  template <typename Visit>
  void for_each_corner(Visit visit) const {
    std::vector<std::array<std::uint64_t, 2>> cell(
        axes_.size());  // positions of the lower and the upper cut, times the stride of the axis
    const auto visit_box = [&](auto&& first, auto&& end, int sign) {
      std::uint64_t stride = 1;
      for (std::size_t i = axes_.size(); i-- > 0;) {
        const Axis& axis = axes_[i];
        const auto position = [&](std::int64_t cut) {
          return static_cast<std::uint64_t>(
              std::lower_bound(axis.cuts.begin(), axis.cuts.end(), cut) - axis.cuts.begin());
        };
        cell[i] = {position(first(axis.axis)) * stride, position(end(axis.axis)) * stride};
        stride *= axis.cuts.size();
      }
      for (std::uint64_t corner = 0; corner < (std::uint64_t{1} << axes_.size()); ++corner) {
        std::uint64_t at = 0;
        for (std::size_t i = 0; i < axes_.size(); ++i) at += cell[i][corner >> i & 1];
        visit(at, std::popcount(corner) % 2 == 0 ? sign : -sign);
      }
    };
    for (const std::uint32_t box : chosen_) {
      const ShapeView offsets = boxes_.offsets(box);
      const ShapeView sizes = boxes_.sizes(box);
      visit_box([&](std::size_t axis) { return offsets[axis]; },
                [&](std::size_t axis) { return offsets[axis] + sizes[axis]; }, 1);
    }
    visit_box([](std::size_t) { return std::int64_t{0}; },
              [&](std::size_t axis) { return size_[axis]; }, -1);
  }

  Miscount miscount(std::uint64_t cell, std::int64_t error) const {
    Miscount found{Shape(size_.size(), 0), 1 + error};
    for (std::size_t i = axes_.size(); i-- > 0;) {
      found.at[axes_[i].axis] = axes_[i].cuts[cell % axes_[i].cuts.size()];
      cell /= axes_[i].cuts.size();
    }
    return found;
  }

  ShapeView size_;
  const BoxList& boxes_;
  std::span<const std::uint32_t> chosen_;
  std::vector<Axis> axes_;
};

bool contains(const BoxList& boxes, std::size_t box, ShapeView element) {
  for (std::size_t axis = 0; axis < element.size(); ++axis) {
    const std::int64_t first = boxes.offsets(box)[axis];
    if (element[axis] < first || element[axis] - first >= boxes.sizes(box)[axis]) return false;
  }
  return true;
}

/// Returns the first two chunks that hold the element.
std::vector<std::uint32_t> holders_of(const BoxList& boxes, std::span<const std::uint32_t> chosen,
                                      ShapeView element) {
  std::vector<std::uint32_t> holders;
  for (const std::uint32_t box : chosen) {
    if (contains(boxes, box, element)) holders.push_back(box);
    if (holders.size() == 2) break;
  }
  return holders;
}

CoverageProblem overlap(const TensorStorageMetadata& tensor, std::span<const std::uint32_t> chosen,
                        const Miscount& found) {
  const auto holders = holders_of(tensor.chunks, chosen, found.at);
  const Box first = tensor.chunks[holders.front()];
  const Box second = tensor.chunks[holders.back()];
  return {{FindingCode::kElementsOverlap,
           str_format("chunks {} and {} overlap: element {} is in {} chunks", to_string(first),
                      to_string(second), to_string(found.at), found.chunks),
           {tensor.key}},
          intersect(first, second)};
}

/// Returns the box of elements in no chunk that begins at `corner`, made as long as possible along
/// the last axis, then along the one before, and so on.
Box hole_at(ShapeView size, const BoxList& boxes, std::span<const std::uint32_t> chosen,
            const Shape& corner) {
  Box hole{corner, Shape(size.size(), 1)};
  for (std::size_t axis = size.size(); axis-- > 0;) {
    Box longer = hole;
    longer.sizes[axis] = size[axis] - corner[axis];
    for (const std::uint32_t box : chosen) {
      if (intersect(longer, boxes[box]))
        longer.sizes[axis] = boxes.offsets(box)[axis] - corner[axis];
    }
    hole = std::move(longer);
  }
  return hole;
}

/// Collects problems and counts those past the limit.
class Report {
 public:
  void add(FindingCode code, const std::string& key, std::string message) {
    if (++count_ <= kMaxProblemsOfAKind) problems_.push_back({{code, std::move(message), {key}}});
  }
  std::vector<CoverageProblem> take() {
    if (count_ > kMaxProblemsOfAKind)
      problems_.back().message +=
          str_format("; and {} more such problems", grouped(count_ - kMaxProblemsOfAKind));
    return std::move(problems_);
  }

 private:
  std::size_t count_ = 0;
  std::vector<CoverageProblem> problems_;
};

/// Returns whether no product of some of the extents overflows, even when another extent is zero.
bool is_sound(ShapeView shape) {
  std::optional<std::int64_t> product = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return false;
    product = checked_mul(*product, std::max<std::int64_t>(extent, 1));
    if (!product) return false;
  }
  return true;
}

std::vector<CoverageProblem> validate_bounds(const TensorStorageMetadata& tensor) {
  Report report;
  const auto contradiction = [&](std::string message) {
    report.add(FindingCode::kBoxesContradict, tensor.key, std::move(message));
  };
  if (!is_sound(tensor.size)) {
    contradiction(str_format("the size {} has a negative extent or too many elements",
                             to_string(tensor.size)));
    return report.take();
  }
  if (tensor.flattened_shape && (!is_sound(*tensor.flattened_shape) ||
                                 !may_be_reformulated(tensor.size, *tensor.flattened_shape))) {
    contradiction(
        str_format("the stored size {} of a flattened tensor does not fit its original shape {}",
                   to_string(tensor.size), to_string(*tensor.flattened_shape)));
  }
  if (tensor.chunks.dims() != tensor.size.size() && !tensor.chunks.empty()) {
    contradiction(str_format("chunks with {} axes in a tensor with {}", tensor.chunks.dims(),
                             tensor.size.size()));
    return report.take();
  }
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    const Box box = tensor.chunks[i];
    if (!is_valid(box)) {
      contradiction(str_format("chunk {} has offsets {} and sizes {}", i, to_string(box.offsets),
                               to_string(box.sizes)));
    } else if (!fits(box, tensor.size)) {
      contradiction(str_format("chunk {} is not inside the tensor of size {}", to_string(box),
                               to_string(tensor.size)));
    }
  }
  return report.take();
}

}  // namespace

std::vector<CoverageProblem> validate_coverage(const TensorStorageMetadata& tensor) {
  std::vector<CoverageProblem> problems = validate_bounds(tensor);
  if (!problems.empty()) return problems;
  const std::int64_t elements = numel(tensor.size);
  if (elements == 0) return problems;
  if (tensor.chunks.size() == 1 && equal(tensor.chunks.sizes(0), tensor.size)) return problems;

  std::vector<std::uint32_t> chosen;  // the chunks that are not empty
  chosen.reserve(tensor.chunks.size());
  std::optional<std::int64_t> held = 0;
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    const std::int64_t size = numel(tensor.chunks.sizes(i));
    if (size == 0) continue;
    chosen.push_back(static_cast<std::uint32_t>(i));
    if (held) held = checked_add(*held, size);
  }
  const auto report = [&](FindingCode code, std::string message,
                          std::optional<Box> region = std::nullopt) {
    problems.push_back({{code, std::move(message), {tensor.key}}, std::move(region)});
  };
  if (chosen.empty()) {
    report(FindingCode::kElementsMissing,
           str_format("no chunk holds any of the {}", counted(elements, "element")),
           whole(tensor.size));
    return problems;
  }
  const CornerSums sums(tensor.size, tensor.chunks, chosen);
  if (sums.too_irregular()) {
    report(FindingCode::kBoxesContradict, grouped(chosen.size()) +
                                              " chunks cut the tensor irregularly along so many "
                                              "axes that their cover cannot be checked");
    return problems;
  }
  const std::optional<Miscount> found = sums.first_miscount();
  if (!found) return problems;
  if (found->chunks > 1) {
    problems.push_back(overlap(tensor, chosen, *found));
  } else {
    std::string message = str_format("element {} is in no chunk", to_string(found->at));
    if (held && *held < elements) {
      message +=
          str_format("; the chunks hold {} of {}", grouped(static_cast<std::uint64_t>(*held)),
                     counted(elements, "element"));
    }
    report(FindingCode::kElementsMissing, message,
           hole_at(tensor.size, tensor.chunks, chosen, found->at));
  }
  return problems;
}

std::optional<std::string> key_of_stray_path(const Metadata& metadata) {
  std::unordered_set<std::string_view> placed;
  for (const auto& [key, path] : metadata.paths) placed.insert(key);
  std::vector<std::string> homeless;
  const auto consider = [&](const std::string& key) {
    if (!placed.contains(key)) homeless.push_back(key);
  };
  for (const TensorStorageMetadata& tensor : metadata.tensors) consider(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) consider(object.key);
  for (const std::string& stray : metadata.stray_paths) {
    if (auto meant = nearest(stray, homeless)) return meant;
  }
  return std::nullopt;
}

std::optional<CheckpointError> problem_of_shared_path(
    std::span<const std::pair<std::string, KeyPath>> paths) {
  std::vector<const std::pair<std::string, KeyPath>*> sorted;
  sorted.reserve(paths.size());
  for (const auto& entry : paths) sorted.push_back(&entry);
  std::ranges::sort(sorted, [](const auto* a, const auto* b) { return a->second < b->second; });
  const auto found = std::ranges::adjacent_find(
      sorted, [](const auto* a, const auto* b) { return a->second == b->second; });
  if (found == sorted.end()) return std::nullopt;
  return CheckpointError(
      ErrorCode::kCorrupt,
      str_format(
          "planner_data gives the keys {} and {} one path, so that readers which nest what is "
          "stored lose one of them; load by keys",
          quote((*found)->first), quote((*std::next(found))->first)),
      {.key = (*std::next(found))->first, .file = ".metadata"});
}

std::optional<CheckpointError> problem_of_paths(const Metadata& metadata) {
  if (auto problem = problem_of_shared_path(metadata.paths)) return problem;
  const auto& strays = metadata.stray_paths;
  if (strays.empty()) return std::nullopt;
  const auto meant = key_of_stray_path(metadata);
  return CheckpointError(
      ErrorCode::kCorrupt,
      str_format("planner_data names {} for which nothing is stored: {}{}",
                 strays.size() == 1 ? "a key" : "keys", quoted_list(strays),
                 meant ? str_format("; {} has no path: is a letter damaged?", quote(*meant)) : ""),
      {.key = strays.front(), .file = ".metadata"});
}

}  // namespace dckpt
