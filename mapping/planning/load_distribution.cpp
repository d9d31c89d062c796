#include "mapping/planning/load_distribution.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "mapping/base/error.h"
#include "mapping/geometry/overlay.h"

namespace dckpt {
namespace {

// Shared parts per rank that are enough for a good balance.
constexpr std::uint64_t kPartsPerRank = 16;

using Part = LoadDistribution::Part;
using Use = LoadDistribution::Use;

/// An entry of a rank, findable by chunk.
struct Reference {
  std::uint32_t tensor;
  std::uint32_t chunk;
  Use use;

  auto order() const noexcept { return std::tie(tensor, chunk, use.rank, use.entry); }
  bool same_chunk(const Reference& other) const noexcept { return tensor == other.tensor && chunk == other.chunk; }
};

class Distribution {
 public:
  Distribution(const Metadata& metadata, std::span<const WantedParts> wanted, std::uint32_t rank, const PartLimits& limits)
      : metadata_(metadata), wanted_(wanted), rank_(rank), limits_(limits) {
    result_.read_bytes.resize(wanted.size());
  }

  LoadDistribution run() {
    const std::vector<Reference> references = sorted_references();
    for (auto first = references.begin(); first != references.end();) {
      const auto last = std::find_if(first, references.end(), [&](const Reference& other) { return !other.same_chunk(*first); });
      add_chunk({first, last});
      first = last;
    }
    cut_shared();
    assign_readers();
    return std::move(result_);
  }

 private:
  std::vector<Reference> sorted_references() const {
    std::vector<Reference> references;
    for (std::uint32_t rank = 0; rank < wanted_.size(); ++rank) {
      for (std::uint32_t entry = 0; entry < wanted_[rank].size(); ++entry) {
        references.push_back({wanted_[rank].tensor(entry), wanted_[rank].chunk(entry), {rank, entry}});
      }
    }
    std::sort(references.begin(), references.end(), [](const Reference& a, const Reference& b) { return a.order() < b.order(); });
    return references;
  }

  void add_chunk(std::span<const Reference> references) {
    const Reference& front = references.front();
    const ShapeView offsets = wanted_[front.use.rank].offsets(front.use.entry);
    const ShapeView sizes = wanted_[front.use.rank].sizes(front.use.entry);
    const bool all_equal = std::all_of(references.begin() + 1, references.end(), [&](const Reference& other) {
      const WantedParts& parts = wanted_[other.use.rank];
      return equal(parts.offsets(other.use.entry), offsets) && equal(parts.sizes(other.use.entry), sizes);
    });
    if (all_equal) {
      std::vector<Use> uses;
      for (const Reference& reference : references) uses.push_back(reference.use);
      add(front, {to_shape(offsets), to_shape(sizes)}, uses);
      return;
    }
    BoxList boxes(sizes.size());
    for (const Reference& reference : references) boxes.push_back(wanted_[reference.use.rank].offsets(reference.use.entry), wanted_[reference.use.rank].sizes(reference.use.entry));
    for (OverlayPart& part : overlay(boxes)) {
      std::vector<Use> uses;
      for (const std::uint32_t member : part.members) uses.push_back(references[member].use);
      add(front, std::move(part.box), uses);
    }
  }

  /// References are ordered by rank, so the uses are.
  void add(const Reference& chunk, Box box, std::span<const Use> uses) {
    Part part;
    part.tensor = chunk.tensor;
    part.chunk = chunk.chunk;
    part.bytes = static_cast<std::uint64_t>(numel(box.sizes)) * item_size(metadata_.tensors[chunk.tensor].properties.dtype);
    part.box = std::move(box);
    if (part.bytes == 0) return;
    part.reader = uses.front().rank;
    const bool alone = uses.front().rank == uses.back().rank;
    if (alone) result_.read_bytes[part.reader] += part.bytes;
    result_.saved_bytes += part.bytes * (uses.size() - 1);
    if (alone && part.reader != rank_) return;
    part.first_use = static_cast<std::uint32_t>(result_.uses.size());
    part.use_count = static_cast<std::uint32_t>(uses.size());
    if (result_.uses.size() + uses.size() > UINT32_MAX) throw CheckpointError(ErrorCode::kUnsupported, "the ranks together want more than 4 billion parts");
    result_.uses.insert(result_.uses.end(), uses.begin(), uses.end());
    (alone ? result_.own : result_.shared).push_back(std::move(part));
  }

  void cut_shared() {
    const std::uint64_t total = std::accumulate(result_.shared.begin(), result_.shared.end(), std::uint64_t{0}, [](std::uint64_t sum, const Part& part) { return sum + part.bytes; });
    const std::uint64_t fair = total / (wanted_.size() * kPartsPerRank);
    const std::uint64_t limit = std::min(std::max(fair, limits_.smallest), std::max<std::uint64_t>(limits_.largest, 1));
    std::vector<Part> whole = std::exchange(result_.shared, {});
    for (Part& part : whole) cut(std::move(part), 0, limit);
  }

  /// Cuts a part into slabs along `axis`, and where one layer is still too large along the axes after it.
  void cut(Part part, std::size_t axis, std::uint64_t limit) {
    while (axis < part.box.dims() && part.box.sizes[axis] == 1) ++axis;
    if (part.bytes <= limit || axis == part.box.dims()) {
      result_.shared.push_back(std::move(part));
      return;
    }
    const std::int64_t extent = part.box.sizes[axis];
    const std::uint64_t layer = part.bytes / static_cast<std::uint64_t>(extent);
    const auto slabs = static_cast<std::int64_t>(std::min(static_cast<std::uint64_t>(extent), (part.bytes + limit - 1) / limit));
    for (std::int64_t slab = 0; slab < slabs; ++slab) {
      const auto at = [&](std::int64_t index) { return index * (extent / slabs) + std::min(index, extent % slabs); };
      Part piece = part;
      piece.box.offsets[axis] += at(slab);
      piece.box.sizes[axis] = at(slab + 1) - at(slab);
      piece.bytes = layer * static_cast<std::uint64_t>(piece.box.sizes[axis]);
      cut(std::move(piece), axis + 1, slabs == extent ? limit : UINT64_MAX);
    }
  }

  void assign_readers() {
    std::vector<std::uint32_t> order(result_.shared.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const Part& left = result_.shared[a];
      const Part& right = result_.shared[b];
      return std::tuple(left.use_count, right.bytes, a) < std::tuple(right.use_count, left.bytes, b);
    });
    for (const std::uint32_t index : order) {
      Part& part = result_.shared[index];
      const auto uses = result_.uses_of(part);
      const auto least = std::min_element(uses.begin(), uses.end(), [&](const Use& a, const Use& b) { return result_.read_bytes[a.rank] < result_.read_bytes[b.rank]; });
      part.reader = least->rank;
      result_.read_bytes[part.reader] += part.bytes;
    }
  }

  const Metadata& metadata_;
  std::span<const WantedParts> wanted_;
  std::uint32_t rank_;
  const PartLimits& limits_;
  LoadDistribution result_;
};

}  // namespace

LoadDistribution distribute_load(const Metadata& metadata, std::span<const WantedParts> wanted, std::uint32_t rank, const PartLimits& limits) {
  return Distribution(metadata, wanted, rank, limits).run();
}

}  // namespace dckpt
