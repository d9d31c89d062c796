#include "mapping/planning/rearrange.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/validate.h"

namespace dckpt {
namespace {

[[noreturn]] void refuse(const RearrangedTensor& tensor, const std::string& why) {
  throw CheckpointError(ErrorCode::kMismatch,
                        "the parts that are to make up this tensor do not fit: " + why,
                        {.key = tensor.key});
}

/// Fills in the axes of a part, and checks it against its tensor and its source.
void check_part(const Metadata& source, const RearrangedTensor& tensor, TensorPart& part) {
  if (!is_valid(part.target) || part.target.dims() != tensor.size.size() ||
      !fits(part.target, tensor.size))
    refuse(tensor, str_format("{} lies outside the shape {}", to_string(part.target),
                              to_string(tensor.size)));
  if (part.elements == TensorPart::Elements::kZeros) return;
  const TensorStorageMetadata& from = source.tensors.at(part.tensor);
  const auto name = [&] { return str_format("{} of {}", to_string(part.source), quote(from.key)); };
  if (!is_valid(part.source) || part.source.dims() != from.global_shape().size() ||
      !fits(part.source, from.global_shape()))
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
    Shape rest = part.source.sizes;  // extents of axes that are not named
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
  refuse(tensor, str_format("{} is to become {}", name(), to_string(part.target)));
}

class MetadataRearranger {
 public:
  MetadataRearranger(const Metadata& source, std::vector<RearrangedTensor> tensors)
      : source_(source), tensors_(std::move(tensors)) {}

  RearrangedMetadata rearranged() {
    result_.metadata.files = source_.files;
    const std::vector<ReadItem> items = plan();
    std::size_t item = 0;
    std::uint32_t number = 0;
    for (RearrangedTensor& tensor : tensors_) {
      begin(tensor);
      for (const TensorPart& part : tensor.parts) {
        if (part.elements == TensorPart::Elements::kZeros) add_zeros(part.target);
        for (; item < items.size() && items[item].destination == number; ++item)
          part.elements == TensorPart::Elements::kInOrder ? add_in_order(part, items[item])
                                                          : add_by_axis(part, items[item]);
        ++number;
      }
      finish(tensor);
    }
    return std::move(result_);
  }

 private:
  /// Which stored chunks have the elements of which part: all in one plan, which makes an index of
  /// every source tensor once.
  std::vector<ReadItem> plan() {
    std::vector<WantedShard> wanted;
    std::uint32_t number = 0;
    for (RearrangedTensor& tensor : tensors_) {
      if (!checked_numel(tensor.size))
        refuse(tensor, "the shape " + to_string(tensor.size) + " has too many elements");
      for (TensorPart& part : tensor.parts) {
        check_part(source_, tensor, part);
        if (part.elements != TensorPart::Elements::kZeros)
          wanted.push_back({part.tensor, number, part.source, std::nullopt});
        ++number;
      }
    }
    return plan_reads(source_, wanted);
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

  void add_by_axis(const TensorPart& part, const ReadItem& item) {
    Box box = part.target;
    ChunkOrigin origin{item.tensor, item.chunk, {item.source.offset, Shape(box.dims(), 1)}};
    for (std::size_t axis = 0; axis < box.dims(); ++axis) {
      if (part.axes[axis] == kNoAxis) continue;
      const auto from = static_cast<std::size_t>(part.axes[axis]);
      box.offsets[axis] += item.offsets[from] - part.source.offsets[from];
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

  /// The innermost axes lie in the file of zeros as they are, the others in the same place.
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
  std::optional<std::uint32_t> zeros_;
};

}  // namespace

RearrangedMetadata rearrange(const Metadata& source, std::vector<RearrangedTensor> tensors) {
  return MetadataRearranger(source, std::move(tensors)).rearranged();
}

}  // namespace dckpt
