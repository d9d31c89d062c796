#include "operations/convert/reshard.h"

#include <algorithm>
#include <map>

#include "mapping/planning/reformulation.h"
#include "operations/inspect/rank_of_file.h"

namespace dckpt {
namespace {

std::uint64_t bytes_of(std::int64_t elements, const TensorStorageMetadata& tensor) {
  return static_cast<std::uint64_t>(elements) * item_size(tensor.properties.dtype);
}

WriteItem stored_item(const TensorStorageMetadata& tensor, std::uint32_t source, Box chunk) {
  WriteItem item;
  item.key = tensor.key;
  item.source = source;
  item.nbytes = bytes_of(numel(chunk.sizes), tensor);
  item.properties = tensor.properties;
  item.size = tensor.size;
  item.chunk = std::move(chunk);
  item.flattened_shape = tensor.flattened_shape;
  return item;
}

WriteItem box_item(const TensorStorageMetadata& tensor, std::uint32_t source, Box chunk) {
  WriteItem item = stored_item(tensor, source, std::move(chunk));
  item.size = tensor.global_shape();
  item.flattened_shape.reset();
  return item;
}

template <typename Visit>
void for_each_cell(const Box& cells, Visit&& visit) {
  const std::int64_t count = numel(cells.sizes);
  Shape cell = cells.offsets;
  for (std::int64_t i = 0; i < count; ++i) {
    visit(i, static_cast<const Shape&>(cell));
    for (std::size_t axis = cells.dims(); axis-- > 0;) {
      if (++cell[axis] < cells.offsets[axis] + cells.sizes[axis]) break;
      cell[axis] = cells.offsets[axis];
    }
  }
}

/// Returns a fragment of one cell, in the stored space.
Box fragment(const Shape& cell, std::int64_t begin, std::int64_t end) {
  Box chunk{cell, Shape(cell.size(), 1)};
  chunk.offsets.push_back(begin);
  chunk.sizes.push_back(end - begin);
  return chunk;
}

class ReshardPlanner {
 public:
  ReshardPlanner(const Metadata& metadata, const ReshardOptions& options)
      : metadata_(metadata), options_(options) {
    if (options.ranks) {
      plans_.resize(static_cast<std::size_t>(std::max(*options.ranks, 1)));
      reserve_parts();
    } else {
      number_files();
    }
    load_.resize(plans_.size(), 0);
  }

  std::vector<SavePlan> plan() {
    for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata_.tensors[i];
      const Shape& shape = tensor.global_shape();
      if (numel(shape) == 0) {  // some formats have no chunks for an empty tensor
        const std::size_t stored = tensor.places.empty() ? 0 : rank_of(tensor.places.front());
        give(options_.ranks ? least_loaded() : stored, box_item(tensor, i, whole(shape)));
        continue;
      }
      const bool reformulated = stays_reformulated(tensor);
      if (!options_.ranks) {
        reformulated ? keep_cells(tensor, i) : keep_chunks(tensor, i);
      } else {
        reformulated ? cut_cells(tensor, i) : cut_boxes(tensor, i);
      }
    }
    for (std::uint32_t i = 0; i < metadata_.objects.size(); ++i) {
      const BytesStorageMetadata& object = metadata_.objects[i];
      WriteItem item;
      item.kind = WriteItem::Kind::kObject;
      item.key = object.key;
      item.source = i;
      item.nbytes = object.place.length;
      give(options_.ranks ? least_loaded() : rank_of(object.place), std::move(item));
    }
    return std::move(plans_);
  }

 private:
  /// Renumbers ranks 0, 1, … in the order of the numbers in the file names; files of other names
  /// belong to rank 0.
  void number_files() {
    std::map<int, std::size_t> ranks;
    for (const std::string& file : metadata_.files)
      ranks.emplace(rank_of_file(file).value_or(0), 0);
    std::size_t next = 0;
    for (auto& [rank, number] : ranks) number = next++;
    for (const std::string& file : metadata_.files)
      rank_of_file_.push_back(ranks.at(rank_of_file(file).value_or(0)));
    plans_.resize(std::max<std::size_t>(next, 1));
  }

  std::size_t rank_of(const StorageInfo& place) const {
    return place.file < rank_of_file_.size() ? rank_of_file_[place.file] : 0;
  }

  std::size_t least_loaded() const {
    return static_cast<std::size_t>(std::min_element(load_.begin(), load_.end()) - load_.begin());
  }

  void give(std::size_t rank, WriteItem item) {
    load_[rank] += item.nbytes;
    plans_[rank].push_back(std::move(item));
  }

  bool stays_reformulated(const TensorStorageMetadata& tensor) const {
    return tensor.flattened_shape && options_.flattened == FlattenedForm::kMegatron;
  }

  void keep_chunks(const TensorStorageMetadata& tensor, std::uint32_t source) {
    for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
      const std::size_t rank = rank_of(tensor.places[chunk]);
      if (!tensor.flattened_shape) {
        give(rank, stored_item(tensor, source, tensor.chunks[chunk]));
        continue;
      }
      for_each_fragment(
          tensor, chunk, [&](const Shape& cell, std::int64_t begin, std::int64_t end) {
            TensorShard shard;
            shard.key = tensor.key;
            shard.properties = tensor.properties;
            shard.global_shape = tensor.global_shape();
            shard.box = cell_box(tensor, cell);
            shard.range = TensorShard::Range{begin, end};
            shard.source = source;
            const LocalShard local(std::move(shard));
            for (WriteItem& item : plan_local_save({&local, 1}, FlattenedForm::kBoxes)) {
              item.source_begin = 0;
              give(rank, std::move(item));
            }
          });
    }
  }

  void keep_cells(const TensorStorageMetadata& tensor, std::uint32_t source) {
    for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
      for_each_fragment(tensor, chunk,
                        [&](const Shape& cell, std::int64_t begin, std::int64_t end) {
                          give(rank_of(tensor.places[chunk]),
                               stored_item(tensor, source, fragment(cell, begin, end)));
                        });
    }
  }

  template <typename Visit>
  static void for_each_fragment(const TensorStorageMetadata& tensor, std::size_t chunk,
                                Visit&& visit) {
    const std::size_t dims = tensor.flattened_shape->size();
    const Box stored = tensor.chunks[chunk];
    const std::int64_t begin = stored.offsets[dims];
    const std::int64_t end = begin + stored.sizes[dims];
    if (begin == end) return;
    const Box cells{Shape(stored.offsets.begin(), stored.offsets.end() - 1),
                    Shape(stored.sizes.begin(), stored.sizes.end() - 1)};
    for_each_cell(cells, [&](std::int64_t, const Shape& cell) { visit(cell, begin, end); });
  }

  static Box cell_box(const TensorStorageMetadata& tensor, const Shape& cell) {
    Box box{cell, reformulated_cell_shape(tensor)};
    for (std::size_t axis = 0; axis < box.dims(); ++axis) box.offsets[axis] *= box.sizes[axis];
    return box;
  }

  struct Cut {
    std::size_t axis = 0;
    std::int64_t parts = 1;  ///< of ranks 0, 1, …; 1 for a tensor that any rank may have
  };

  Cut cut_of(const TensorStorageMetadata& tensor) const {
    const Shape& shape = tensor.global_shape();
    const auto ranks = static_cast<std::int64_t>(plans_.size());
    const std::uint64_t uncut = std::max(kUncutBytes, plans_.size() * kSmallestPart);
    if (ranks == 1 || shape.empty() || bytes_of(numel(shape), tensor) <= uncut) return {};
    auto axis = std::find_if(shape.begin(), shape.end(),
                             [&](std::int64_t extent) { return extent >= ranks; });
    if (axis == shape.end()) axis = std::max_element(shape.begin(), shape.end());
    return {static_cast<std::size_t>(axis - shape.begin()), std::min(ranks, *axis)};
  }

  /// Makes room for the parts of tensors, which are most items of a large plan.
  void reserve_parts() {
    std::vector<std::size_t> last(plans_.size());  // by rank: tensors whose last part it has
    for (const TensorStorageMetadata& tensor : metadata_.tensors)
      if (!stays_reformulated(tensor)) ++last[static_cast<std::size_t>(cut_of(tensor).parts) - 1];
    std::size_t parts = 0;
    for (std::size_t rank = plans_.size(); rank-- > 0;) plans_[rank].reserve(parts += last[rank]);
  }

  void cut_boxes(const TensorStorageMetadata& tensor, std::uint32_t source) {
    const Shape& shape = tensor.global_shape();
    const auto [axis, parts] = cut_of(tensor);
    if (parts == 1) {
      give(least_loaded(), box_item(tensor, source, whole(shape)));
      return;
    }
    for (std::int64_t part = 0; part < parts; ++part) {
      Box chunk = whole(shape);
      chunk.offsets[axis] = share(shape[axis], part, parts);
      chunk.sizes[axis] = share(shape[axis], part + 1, parts) - chunk.offsets[axis];
      give(static_cast<std::size_t>(part), box_item(tensor, source, std::move(chunk)));
    }
  }

  void cut_cells(const TensorStorageMetadata& tensor, std::uint32_t source) {
    const std::size_t dims = tensor.flattened_shape->size();
    const Box cells = whole(ShapeView(tensor.size).first(dims));
    const std::int64_t count = numel(cells.sizes);
    const std::int64_t elements = tensor.size[dims];
    const auto ranks = static_cast<std::int64_t>(plans_.size());
    const bool small = bytes_of(elements, tensor) <= kUncutBytes;
    const std::int64_t parts =
        small ? 1
              : std::min(elements,
                         std::max<std::int64_t>(1, ranks / std::max<std::int64_t>(count, 1)));
    for_each_cell(cells, [&](std::int64_t number, const Shape& cell) {
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t begin = share(elements, part, parts);
        const std::int64_t piece = number * parts + part;
        const std::int64_t rank =
            small ? static_cast<std::int64_t>(least_loaded()) : piece * ranks / (count * parts);
        give(static_cast<std::size_t>(rank),
             stored_item(tensor, source, fragment(cell, begin, share(elements, part + 1, parts))));
      }
    });
  }

  /// Returns the start of part `part` of `parts` almost equal parts of `total`; the first ones are
  /// longer by one.
  static std::int64_t share(std::int64_t total, std::int64_t part, std::int64_t parts) {
    return part * (total / parts) + std::min(part, total % parts);
  }

  const Metadata& metadata_;
  const ReshardOptions& options_;
  std::vector<SavePlan> plans_;
  std::vector<std::uint64_t> load_;
  std::vector<std::size_t> rank_of_file_;
};

}  // namespace

std::vector<SavePlan> plan_reshard(const Metadata& metadata, const ReshardOptions& options) {
  return ReshardPlanner(metadata, options).plan();
}

WantedShard wanted_for(const Metadata& metadata, const WriteItem& item, std::int64_t begin,
                       std::int64_t count) {
  const TensorStorageMetadata& tensor = metadata.tensors[item.source];
  WantedShard wanted;
  wanted.tensor = item.source;
  if (!item.flattened_shape) {
    wanted.box = item.chunk;
    wanted.range = WantedShard::Range{begin, begin + count};
    return wanted;
  }
  const std::size_t dims = item.flattened_shape->size();
  const Shape cell = reformulated_cell_shape(tensor);
  wanted.box = {Shape(item.chunk.offsets.begin(), item.chunk.offsets.end() - 1), cell};
  for (std::size_t axis = 0; axis < dims; ++axis) wanted.box.offsets[axis] *= cell[axis];
  const std::int64_t first = item.chunk.offsets[dims] + begin;
  wanted.range = WantedShard::Range{first, first + count};
  return wanted;
}

}  // namespace dckpt
