#include "mapping/planning/load/distribution.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/geometry/cut.h"
#include "mapping/geometry/join.h"
#include "mapping/geometry/overlay.h"
#include "mapping/planning/chunk_geometry.h"

namespace dckpt {
namespace {

// The number of shared pieces per rank that is enough for a good balance.
constexpr std::uint64_t kPiecesPerRank = 16;

using Part = LoadDistribution::Part;
using Slab = LoadDistribution::Slab;
using Use = LoadDistribution::Use;
using Ranks = std::vector<std::uint32_t>;

/// An entry of a rank, findable by chunk.
struct Reference {
  std::uint32_t tensor;
  std::uint32_t chunk;
  Use use;

  auto order() const noexcept { return std::tie(tensor, chunk, use.rank, use.entry); }
  bool same_chunk(const Reference& other) const noexcept {
    return tensor == other.tensor && chunk == other.chunk;
  }
};

/// Calls visit(references) for every chunk that is wanted, ordered by rank.
template <typename Visit>
void for_each_chunk(std::span<const WantedParts> wanted, Visit&& visit) {
  std::vector<Reference> references;
  for (std::uint32_t rank = 0; rank < wanted.size(); ++rank) {
    for (std::uint32_t entry = 0; entry < wanted[rank].size(); ++entry) {
      references.push_back({wanted[rank].tensor(entry), wanted[rank].chunk(entry), {rank, entry}});
    }
  }
  std::sort(references.begin(), references.end(),
            [](const Reference& a, const Reference& b) { return a.order() < b.order(); });
  for (auto first = references.begin(); first != references.end();) {
    const auto last = std::find_if(
        first, references.end(), [&](const Reference& other) { return !other.same_chunk(*first); });
    visit(std::span<const Reference>(first, last));
    first = last;
  }
}

/// Returns the different ranks of a sequence ordered by rank.
Ranks ranks_of(std::span<const Use> uses) {
  Ranks ranks;
  for (const Use& use : uses) {
    if (ranks.empty() || ranks.back() != use.rank) ranks.push_back(use.rank);
  }
  return ranks;
}

/// A read of a part or slab in one operation.
struct Read {
  ChunkNumber chunk;
  std::uint32_t reader = 0;
  bool own = false;
};

/// Assigns readers and holders to the parts that several ranks want.
class SharedAssignment {
 public:
  SharedAssignment(const Metadata& metadata, std::uint64_t most_together, LoadDistribution& result)
      : metadata_(metadata), most_together_(most_together), result_(result) {}

  void assign_readers() {
    std::vector<Assignment> assignments = assignments_by_place();
    std::stable_sort(
        assignments.begin(), assignments.end(), [](const Assignment& a, const Assignment& b) {
          return std::pair(a.ranks.size(), b.bytes) < std::pair(b.ranks.size(), a.bytes);
        });
    const auto reads_less = [&](std::uint32_t a, std::uint32_t b) {
      return result_.read_bytes[a] < result_.read_bytes[b];
    };
    for (const Assignment& assignment : assignments) {
      const std::uint32_t reader =
          *std::min_element(assignment.ranks.begin(), assignment.ranks.end(), reads_less);
      result_.read_bytes[reader] += assignment.bytes;
      for (const std::uint32_t part : assignment.parts) result_.shared[part].reader = reader;
      for (const std::uint32_t index : assignment.slabs) {
        Slab& slab = result_.slabs[index];
        slab.reader = reader;
        for (std::uint32_t part = slab.first_part; part < slab.first_part + slab.part_count; ++part)
          result_.shared[part].reader = reader;
      }
    }
  }

  /// The holder of a part sends it to all other ranks that want it.
  void assign_holders() {
    std::vector<std::uint64_t> handed(result_.read_bytes.size());
    for (Part& part : result_.shared) {
      const Ranks ranks = ranks_of(result_.uses_of(part));
      part.holder = part.reader;
      if (!std::binary_search(ranks.begin(), ranks.end(), part.reader)) {
        part.holder = *std::min_element(
            ranks.begin(), ranks.end(),
            [&](std::uint32_t a, std::uint32_t b) { return handed[a] < handed[b]; });
      }
      handed[part.holder] += part.bytes * (ranks.size() - 1);
    }
  }

 private:
  /// An assignment to one rank: a part or a slab, or several small ones that are adjacent in a
  /// file.
  struct Assignment {
    Ranks ranks;  ///< ranks that want it
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> parts, slabs;
  };

  /// Keeps neighbors in a file that the same ranks want together as long as the balance permits,
  /// since one read fetches them.
  std::vector<Assignment> assignments_by_place() const {
    struct Placed {
      const StorageInfo* place;
      Assignment assignment;
    };
    std::vector<Placed> placed;
    for (std::uint32_t i = 0; i < result_.shared.size(); ++i) {
      const Part& part = result_.shared[i];
      const StorageInfo* const place = &metadata_.tensors[part.tensor].places[part.chunk];
      if (part.slab == LoadDistribution::kNoSlab) {
        placed.push_back({place, {ranks_of(result_.uses_of(part)), part.bytes, {i}, {}}});
        continue;
      }
      const Slab& slab = result_.slabs[part.slab];
      if (slab.first_part == i) {
        placed.push_back({place, {{}, slab.bytes, {}, {part.slab}}});
      }
      Ranks& all = placed.back().assignment.ranks;
      const Ranks more = ranks_of(result_.uses_of(part));
      Ranks both;
      std::set_union(all.begin(), all.end(), more.begin(), more.end(), std::back_inserter(both));
      all = std::move(both);
    }
    const auto position = [](const Placed& one) {
      return std::pair(one.place->file, one.place->offset);
    };
    std::stable_sort(placed.begin(), placed.end(),
                     [&](const Placed& a, const Placed& b) { return position(a) < position(b); });
    std::vector<Assignment> assignments;
    std::uint32_t file = 0;
    for (Placed& next : placed) {
      Assignment& assignment = next.assignment;
      if (!assignments.empty() && file == next.place->file &&
          assignments.back().bytes + assignment.bytes <= most_together_ &&
          assignments.back().ranks == assignment.ranks) {
        Assignment& last = assignments.back();
        last.bytes += assignment.bytes;
        last.parts.insert(last.parts.end(), assignment.parts.begin(), assignment.parts.end());
        last.slabs.insert(last.slabs.end(), assignment.slabs.begin(), assignment.slabs.end());
      } else {
        assignments.push_back(std::move(assignment));
      }
      file = next.place->file;
    }
    return assignments;
  }

  const Metadata& metadata_;
  std::uint64_t most_together_;  ///< bytes of neighbors in a file
  LoadDistribution& result_;
};

/// Finds the chunks that are read in several pieces, and chooses one of the readers of each.
void find_split_chunks(std::vector<Read> reads, LoadDistribution& result) {
  for (const Part& part : result.shared) {
    if (part.slab == LoadDistribution::kNoSlab)
      reads.push_back({{part.tensor, part.chunk}, part.reader, false});
  }
  for (const Slab& slab : result.slabs)
    reads.push_back({{slab.tensor, slab.chunk}, slab.reader, false});
  std::stable_sort(reads.begin(), reads.end(),
                   [](const Read& a, const Read& b) { return a.chunk < b.chunk; });
  for (auto first = reads.begin(); first != reads.end();) {
    const auto last = std::find_if(first, reads.end(),
                                   [&](const Read& other) { return other.chunk != first->chunk; });
    const auto count = static_cast<std::size_t>(last - first);
    const bool by_one_for_itself = std::all_of(
        first, last, [&](const Read& read) { return read.own && read.reader == first->reader; });
    if (count > 1 && !by_one_for_itself)
      result.split_chunks.push_back(
          {first->chunk,
           first[static_cast<std::ptrdiff_t>(result.split_chunks.size() % count)].reader});
    first = last;
  }
}

class LoadDistributor {
 public:
  LoadDistributor(const Metadata& metadata, std::span<const WantedParts> wanted, std::uint32_t rank,
                  const PartLimits& limits, std::span<const ChunkNumber> read_whole)
      : metadata_(metadata),
        wanted_(wanted),
        rank_(rank),
        limits_(limits),
        read_whole_(read_whole) {
    result_.read_bytes.resize(wanted.size());
  }

  LoadDistribution distribute() {
    for_each_chunk(wanted_, [&](std::span<const Reference> references) { add_chunk(references); });
    cut_shared();
    SharedAssignment assignment(metadata_, std::min(fair_, limits_.largest), result_);
    assignment.assign_readers();
    assignment.assign_holders();
    find_split_chunks(std::move(reads_), result_);
    return std::move(result_);
  }

 private:
  /// A region of a chunk that several ranks want, before it is cut for the balance: a part, or a
  /// slab.
  struct Region {
    Box box;
    bool is_slab = false;
    bool can_be_cut = true;
    std::vector<Part> parts;
  };
  std::uint64_t item_of(std::uint32_t tensor) const {
    return item_size(metadata_.tensors[tensor].properties.dtype);
  }
  std::uint64_t bytes_of(std::uint32_t tensor, const Box& box) const {
    return static_cast<std::uint64_t>(numel(box.sizes)) * item_of(tensor);
  }

  void add_chunk(std::span<const Reference> references) {
    const Reference& front = references.front();
    const bool alone = front.use.rank == references.back().use.rank;
    const bool read_whole = !alone && std::binary_search(read_whole_.begin(), read_whole_.end(),
                                                         ChunkNumber{front.tensor, front.chunk});
    std::vector<Part> parts = parts_of(references);
    if (parts.size() < 2 || alone) {
      for (Part& part : parts) add(std::move(part), !read_whole);
      return;
    }
    const ChunkGeometry geometry(metadata_.tensors[front.tensor], front.chunk);
    if (read_whole) {
      Box box = parts.front().box;
      for (const Part& part : parts) box = bounding_box(box, part.box);
      if (geometry.find(box)) return add_slab(std::move(box), std::move(parts), false);
    }
    // These parts are best read together with their neighbors.
    const bool small =
        bytes_of(front.tensor,
                 {{}, Shape(metadata_.tensors[front.tensor].chunks.sizes(front.chunk))}) <=
        limits_.small_chunk;
    const auto rest = std::stable_partition(parts.begin(), parts.end(), [&](const Part& part) {
      return small || has_short_runs(part, geometry);
    });
    std::vector<Box> boxes;
    for (auto part = parts.begin(); part != rest; ++part) boxes.push_back(part->box);
    for (JoinedBox& joined :
         join_boxes(boxes, [&](const Box& box) { return geometry.find(box).has_value(); })) {
      std::vector<Part> members;
      for (const std::uint32_t member : joined.members) members.push_back(std::move(parts[member]));
      add_slab(std::move(joined.box), std::move(members), true);
    }
    std::for_each(rest, parts.end(), [&](Part& part) { add(std::move(part), true); });
  }

  /// Returns the parts of a chunk that the ranks want, cut where ranks want different boxes.
  /// References are ordered by rank, so the uses are, too.
  std::vector<Part> parts_of(std::span<const Reference> references) {
    const Reference& front = references.front();
    const auto box_of = [&](const Reference& reference) {
      return wanted_[reference.use.rank].box(reference.use.entry);
    };
    std::vector<Part> parts;
    const auto add_part = [&](Box box, auto&& members) {
      if (numel(box.sizes) == 0) return;
      Part part{.tensor = front.tensor,
                .chunk = front.chunk,
                .box = std::move(box),
                .first_use = static_cast<std::uint32_t>(result_.uses.size())};
      part.bytes = bytes_of(part.tensor, part.box);
      for (const std::uint32_t member : members) result_.uses.push_back(references[member].use);
      if (result_.uses.size() > UINT32_MAX)
        throw_error(ErrorCode::kUnsupported, "the ranks together want more than 4 billion parts");
      part.use_count = static_cast<std::uint32_t>(result_.uses.size()) - part.first_use;
      parts.push_back(std::move(part));
    };
    const ShapeView offsets = wanted_[front.use.rank].offsets(front.use.entry);
    const ShapeView sizes = wanted_[front.use.rank].sizes(front.use.entry);
    const bool all_equal =
        std::all_of(references.begin() + 1, references.end(), [&](const Reference& other) {
          const WantedParts& others = wanted_[other.use.rank];
          return equal(others.offsets(other.use.entry), offsets) &&
                 equal(others.sizes(other.use.entry), sizes);
        });
    if (all_equal) {
      std::vector<std::uint32_t> members(references.size());
      std::iota(members.begin(), members.end(), 0U);
      add_part(box_of(front), members);
      return parts;
    }
    BoxList boxes(sizes.size());
    for (const Reference& reference : references) boxes.push_back(box_of(reference));
    for (OverlayPart& part : overlay(boxes)) add_part(std::move(part.box), part.members);
    return parts;
  }

  bool has_short_runs(const Part& part, const ChunkGeometry& geometry) const {
    const auto view = geometry.find(part.box);
    if (!view) return false;
    const RunPlan runs = plan_runs(part.box.sizes, *view, *view);
    return !runs.counts.empty() &&
           static_cast<std::uint64_t>(runs.run) * item_of(part.tensor) < limits_.short_run;
  }

  bool is_own(const Part& part) const {
    const auto uses = result_.uses_of(part);
    return uses.front().rank == uses.back().rank;
  }

  /// Adds a part that is read directly into its place.
  void add(Part part, bool can_be_cut) {
    const auto uses = result_.uses_of(part);
    result_.saved_bytes += part.bytes * (uses.size() - 1);
    if (!is_own(part)) {
      Box box = part.box;
      regions_.push_back({std::move(box), false, can_be_cut, {std::move(part)}});
      return;
    }
    add_own(std::move(part));
  }

  /// Adds a part that one rank wants.
  void add_own(Part part) {
    part.reader = part.holder = result_.uses_of(part).front().rank;
    result_.read_bytes[part.reader] += part.bytes;
    reads_.push_back({{part.tensor, part.chunk}, part.reader, true});
    if (part.reader == rank_) result_.own.push_back(std::move(part));
  }

  void add_slab(Box box, std::vector<Part> parts, bool can_be_cut) {
    const auto rank_of = [&](const Part& part) { return result_.uses_of(part).front().rank; };
    const std::uint32_t rank = rank_of(parts.front());
    const bool alone = std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
      return rank_of(part) == rank && is_own(part);
    });
    if (parts.size() == 1 || alone) {
      for (Part& part : parts) add(std::move(part), can_be_cut);
      return;
    }
    for (const Part& part : parts) result_.saved_bytes += part.bytes * part.use_count;
    regions_.push_back({std::move(box), true, can_be_cut, std::move(parts)});
  }

  void cut_shared() {
    std::uint64_t total = 0;
    for (const Region& region : regions_)
      total += bytes_of(region.parts.front().tensor, region.box);
    fair_ = total / (wanted_.size() * kPiecesPerRank);
    const std::uint64_t limit =
        std::min(std::max(fair_, limits_.smallest), std::max<std::uint64_t>(limits_.largest, 1));
    const std::uint64_t slab_limit =
        std::min(limit, std::max<std::uint64_t>(limits_.largest_slab, 1));
    for (Region& region : std::exchange(regions_, {})) {
      const std::uint32_t tensor = region.parts.front().tensor;
      std::vector<Box> pieces;
      if (region.can_be_cut) {
        cut_box(region.box, item_of(tensor), region.is_slab ? slab_limit : limit, pieces);
      } else {
        pieces.push_back(region.box);
      }
      for (const Box& piece : pieces) add_piece(region, piece);
    }
  }

  /// Adds the elements of a part or slab that are in a box.
  void add_piece(const Region& region, const Box& piece) {
    const auto first = static_cast<std::uint32_t>(result_.shared.size());
    std::optional<Box> filled;
    for (const Part& part : region.parts) {
      auto common = intersect(part.box, piece);
      if (!common) continue;
      filled = filled ? bounding_box(*filled, *common) : *common;
      Part cut = part;
      cut.box = std::move(*common);
      cut.bytes = bytes_of(cut.tensor, cut.box);
      result_.shared.push_back(std::move(cut));
    }
    const auto count = static_cast<std::uint32_t>(result_.shared.size()) - first;
    if (count == 0) return;
    if (count == 1) {  // a single part needs no slab
      if (!is_own(result_.shared.back())) return;
      add_own(std::move(result_.shared.back()));
      result_.shared.pop_back();
      return;
    }
    const Part& front = result_.shared[first];
    Box box = region.can_be_cut ? *filled : piece;
    const std::uint64_t bytes = bytes_of(front.tensor, box);
    for (std::uint32_t part = first; part < first + count; ++part)
      result_.shared[part].slab = static_cast<std::uint32_t>(result_.slabs.size());
    result_.slabs.push_back({.tensor = front.tensor,
                             .chunk = front.chunk,
                             .box = std::move(box),
                             .bytes = bytes,
                             .first_part = first,
                             .part_count = count});
  }

  const Metadata& metadata_;
  std::span<const WantedParts> wanted_;
  std::uint32_t rank_;
  const PartLimits& limits_;
  std::span<const ChunkNumber> read_whole_;
  std::vector<Region> regions_;
  std::vector<Read> reads_;
  std::uint64_t fair_ = 0;
  LoadDistribution result_;
};

}  // namespace

LoadDistribution distribute_load(const Metadata& metadata, std::span<const WantedParts> wanted,
                                 std::uint32_t rank, const PartLimits& limits,
                                 std::span<const ChunkNumber> read_whole) {
  return LoadDistributor(metadata, wanted, rank, limits, read_whole).distribute();
}

}  // namespace dckpt
