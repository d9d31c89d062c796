// Items arrive rank after rank and are kept in the order of arrival, as one small record each;
// their boxes lie with their key. Where the boxes of a key arrive in ascending order, which is how
// ranks in order hold a sharded tensor, no two are the same and nothing has to be compared.
// Otherwise they are sorted, and equal ones are neighbours.

#include "mapping/planning/save/global_plan.h"

#include <algorithm>
#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"
#include "mapping/base/text.h"
#include "mapping/planning/ownership.h"
#include "mapping/planning/validate.h"

namespace dckpt {
namespace {

constexpr std::size_t kShownProblems = 20;

int compare_boxes(const BoxList& boxes, std::size_t a, std::size_t b) noexcept {
  const auto order = [](ShapeView left, ShapeView right) {
    for (std::size_t axis = 0; axis < left.size(); ++axis) {
      if (left[axis] != right[axis]) return left[axis] < right[axis] ? -1 : 1;
    }
    return 0;
  };
  const int by_offset = order(boxes.offsets(a), boxes.offsets(b));
  return by_offset != 0 ? by_offset : order(boxes.sizes(a), boxes.sizes(b));
}

/// The axis along which a chunk is cut into pieces that are contiguous in it.
std::optional<std::size_t> cut_axis(ShapeView sizes) noexcept {
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] != 1) return axis;
  }
  return std::nullopt;
}

Box piece_of(const Box& chunk, std::int64_t begin, std::int64_t end) {
  Box piece = chunk;
  if (const auto axis = cut_axis(chunk.sizes); axis && end != 0) {
    piece.offsets[*axis] += begin;
    piece.sizes[*axis] = end - begin;
  }
  return piece;
}

}  // namespace

class GlobalPlanner::Work {
 public:
  explicit Work(const GlobalPlanOptions& options)
      : options_(options), any_holder_(options.kind != PlannerKind::kMegatron) {}

  void add(const SavePlan& plan) {
    const std::size_t rank = rank_begin_.size();
    rank_begin_.push_back(records_.size());
    std::vector<std::uint32_t> entries;
    entries.reserve(plan.size());
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const WriteItem& item = plan[i];
      // Ranks mostly plan the same keys in the same order.
      const bool as_before =
          i < entries_before_.size() && entries_[entries_before_[i]].key == item.key;
      const std::uint32_t entry = as_before ? entries_before_[i] : find_entry(item.key);
      entries.push_back(entry);
      add_item(entry, item, rank);
    }
    entries_before_ = std::move(entries);
  }

  GlobalPlan finish() {
    plan_.items.resize(rank_begin_.size());
    plan_.slots.resize(rank_begin_.size());
    load_.assign(rank_begin_.size(), 0);
    chosen_.assign(records_.size(), 0);
    for (Entry& entry : entries_) {
      group(entry);
      if (entry.has_empty) leave_out_empty(entry);
    }
    choose_writers();
    collect();
    if (options_.validate) check_coverage();
    if (!problems_.empty()) {
      std::string message = "Invalid access pattern: the ranks' shards do not make a checkpoint:";
      for (std::size_t i = 0; i < std::min(problems_.size(), kShownProblems); ++i)
        message += "\n  " + problems_[i];
      if (problems_.size() > kShownProblems)
        message += "\n  … and " + grouped(problems_.size() - kShownProblems) + " more";
      throw CheckpointError(ErrorCode::kMismatch, message);
    }
    return std::move(plan_);
  }

 private:
  /// A key and everything that ranks hold of it, in the order of arrival.
  struct Entry {
    std::string key;
    WriteItem::Kind kind = WriteItem::Kind::kTensor;
    TensorProperties properties{};
    Shape size{};
    std::optional<Shape> flattened_shape{};
    bool flattened = false;
    std::string grid_key{};
    std::size_t first_rank = 0;
    bool disagrees = false;  ///< reported: ranks disagree on it, or a part lies outside

    BoxList boxes;
    std::vector<std::uint32_t> records;  ///< of each box
    /// Of each box, whether it is not the main replica; empty when all are main.
    std::vector<bool> replicas;
    bool has_empty = false;  ///< a box without elements
    bool ascending = true;   ///< each box comes after the one before, so that no two are the same
    /// Unless ascending: boxes in order, equal ones in the order of arrival.
    std::vector<std::uint32_t> sorted{};
    /// Unless ascending: of each box, where its equals begin in `sorted`.
    std::vector<std::uint32_t> group_begin{};
    std::vector<bool> left_out{};  ///< of each box, whether it is not stored; empty when all may be
    std::uint32_t stored = UINT32_MAX;  ///< position in the metadata

    bool is_replica(std::size_t box) const { return !replicas.empty() && replicas[box]; }
    std::uint64_t bytes(std::size_t box) const {
      return kind == WriteItem::Kind::kObject
                 ? 0
                 : static_cast<std::uint64_t>(numel(boxes.sizes(box))) *
                       item_size(properties.dtype);
    }
  };

  /// An item: which box of which entry.
  struct Record {
    std::uint32_t entry = 0;
    std::uint32_t box = 0;
  };

  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  std::uint32_t find_entry(const std::string& key) {
    const auto [found, inserted] =
        by_key_.try_emplace(key, static_cast<std::uint32_t>(entries_.size()));
    if (inserted) {
      entries_.emplace_back();
      entries_.back().key = key;
    }
    return found->second;
  }

  void add_item(std::uint32_t number, const WriteItem& item, std::size_t rank) {
    Entry& entry = entries_[number];
    if (entry.records.empty()) {
      entry.kind = item.kind;
      entry.properties = item.properties;
      entry.size = item.size;
      entry.flattened_shape = item.flattened_shape;
      entry.flattened = item.flattened;
      entry.grid_key = item.grid_key;
      entry.first_rank = rank;
      entry.boxes = BoxList(item.chunk.dims());
    } else {
      compare(entry, item, rank);
    }
    if (!entry.disagrees && !fits(item.chunk, item.size)) {
      entry.disagrees = true;
      problems_.push_back(quote(item.key) + ": rank " + std::to_string(rank) +
                          " holds the part at " + to_string(item.chunk.offsets) + " of " +
                          to_string(item.chunk.sizes) + ", which is not inside the shape " +
                          to_string(item.size));
    }
    if (entry.disagrees) {
      records_.push_back({number, UINT32_MAX});
      return;
    }
    const std::size_t box = entry.boxes.size();
    entry.boxes.push_back(item.chunk);
    entry.has_empty |= item.kind == WriteItem::Kind::kTensor && item.nbytes == 0;
    if (box > 0 && compare_boxes(entry.boxes, box - 1, box) >= 0) entry.ascending = false;
    if (!item.main_replica && entry.replicas.empty()) entry.replicas.assign(box, false);
    if (!item.main_replica || !entry.replicas.empty()) entry.replicas.push_back(!item.main_replica);
    entry.records.push_back(static_cast<std::uint32_t>(records_.size()));
    records_.push_back({number, static_cast<std::uint32_t>(box)});
  }

  void compare(Entry& entry, const WriteItem& item, std::size_t rank) {
    if (entry.disagrees) return;
    const bool both_objects =
        entry.kind == WriteItem::Kind::kObject && item.kind == WriteItem::Kind::kObject;
    const bool same = (both_objects && entry.size == item.size) ||
                      (!both_objects && entry.kind == item.kind &&
                       entry.properties.dtype == item.properties.dtype && entry.size == item.size &&
                       entry.flattened_shape == item.flattened_shape &&
                       (any_holder_ || entry.flattened == item.flattened));
    if (same) return;
    entry.disagrees = true;
    const bool uneven = entry.flattened_shape && entry.flattened_shape == item.flattened_shape &&
                        entry.size != item.size;
    problems_.push_back(quote(item.key) + ": rank " + std::to_string(entry.first_rank) + " holds " +
                        describe(entry) + ", rank " + std::to_string(rank) + " " + describe(item) +
                        (uneven ? "; Megatron's form of flattened tensors needs shards of equal "
                                  "shape, the form 'boxes' does not"
                                : ""));
  }

  /// Of an entry or an item.
  template <typename Holding>
  static std::string describe(const Holding& held) {
    if (held.kind == WriteItem::Kind::kObject)
      return held.size.empty() ? "an object" : "an object of a grid " + to_string(held.size);
    std::string text = "a tensor " + std::string(to_string(held.properties.dtype)) + " " +
                       to_string(held.flattened_shape ? *held.flattened_shape : held.size);
    if (held.flattened)
      text += held.flattened_shape ? " (flattened, stored as " + to_string(held.size) + ")"
                                   : " (flattened)";
    return text;
  }

  void group(Entry& entry) const {
    if (entry.ascending) return;
    entry.sorted.resize(entry.boxes.size());
    for (std::uint32_t i = 0; i < entry.sorted.size(); ++i) entry.sorted[i] = i;
    std::sort(entry.sorted.begin(), entry.sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
      const int order = compare_boxes(entry.boxes, a, b);
      return order != 0 ? order < 0 : a < b;
    });
    entry.group_begin.resize(entry.sorted.size());
    std::uint32_t begin = 0;
    for (std::uint32_t i = 0; i < entry.sorted.size(); ++i) {
      if (compare_boxes(entry.boxes, entry.sorted[begin], entry.sorted[i]) != 0) begin = i;
      entry.group_begin[entry.sorted[i]] = begin;
    }
  }

  /// Decides which boxes without elements are stored. By Megatron's rule none is, if the tensor has
  /// elements at all. By DCP's rule they are, unless another box begins at the same offset: that is
  /// what DCP's readers know a chunk by.
  void leave_out_empty(Entry& entry) const {
    const std::size_t count = entry.boxes.size();
    const bool none = !any_holder_ && numel(entry.size) != 0;
    const auto box_at = [&](std::size_t i) { return entry.ascending ? i : entry.sorted[i]; };
    entry.left_out.assign(count, false);
    for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
      std::size_t kept = box_at(begin);  // of those that begin here
      for (end = begin; end < count && std::ranges::equal(entry.boxes.offsets(box_at(end)),
                                                          entry.boxes.offsets(kept));
           ++end) {
        if (numel(entry.boxes.sizes(kept)) == 0) kept = box_at(end);
      }
      for (std::size_t i = begin; i < end; ++i) {
        const std::size_t box = box_at(i);
        entry.left_out[box] = numel(entry.boxes.sizes(box)) == 0 &&
                              (none || compare_boxes(entry.boxes, box, kept) != 0);
      }
    }
  }

  /// All boxes equal to this one, itself included, in the order of arrival.
  static std::span<const std::uint32_t> equals_of(const Entry& entry, const std::uint32_t& box) {
    if (entry.ascending) return {&box, 1};
    const std::uint32_t begin = entry.group_begin[box];
    std::uint32_t end = begin + 1;
    while (end < entry.sorted.size() && entry.group_begin[entry.sorted[end]] == begin) ++end;
    return std::span(entry.sorted).subspan(begin, end - begin);
  }

  void choose_writers() {
    if (!options_.use_replicas || any_holder_) {
      for (const Record& record : records_) {
        if (is_first(record)) choose_writer(entries_[record.entry], record.box);
      }
      return;
    }
    struct Part {
      Record record;
      std::size_t holders;
      std::uint64_t bytes;
    };
    std::vector<Part> parts;
    for (const Record& record : records_) {
      if (!is_first(record)) continue;
      const Entry& entry = entries_[record.entry];
      parts.push_back({record, equals_of(entry, record.box).size(), entry.bytes(record.box)});
    }
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
      return a.holders != b.holders ? a.holders < b.holders : a.bytes > b.bytes;
    });
    for (const Part& part : parts) choose_writer(entries_[part.record.entry], part.record.box);
  }

  bool is_first(const Record& record) const {
    if (record.box == UINT32_MAX) return false;
    const Entry& entry = entries_[record.entry];
    return entry.ascending || entry.sorted[entry.group_begin[record.box]] == record.box;
  }

  std::size_t rank_of(std::uint32_t record) const {
    return static_cast<std::size_t>(
               std::upper_bound(rank_begin_.begin(), rank_begin_.end(), record) -
               rank_begin_.begin()) -
           1;
  }

  /// Of the equals of `box`.
  void choose_writer(const Entry& entry, std::uint32_t box) {
    if (entry.has_empty && entry.left_out[box]) return;
    const auto holders = equals_of(entry, box);
    if (holders.size() == 1) {
      if (entry.is_replica(box) && !any_holder_) return;
      write(entry, box, rank_of(entry.records[box]));
      return;
    }
    std::vector<std::uint32_t> writers;  // may write it
    std::size_t mains = 0;
    for (const std::uint32_t holder : holders) {
      const bool main = !entry.is_replica(holder);
      mains += main ? 1 : 0;
      if (main || options_.use_replicas || any_holder_) writers.push_back(holder);
    }
    if (mains == 0 && !any_holder_) return;
    const bool forbidden = any_holder_ ? options_.dedup == Dedup::kOff : mains > 1;
    const bool empty =
        numel(entry.boxes.sizes(box)) ==
        0;  // an uneven sharding may give a rank several parts without elements at the same place
    if (!empty && (forbidden || held_twice(entry, writers))) report_duplicate(entry, writers);
    if (options_.split_replicas && entry.bytes(box) >= kSplitBytes) {
      split(entry, writers);
      return;
    }
    std::uint32_t chosen = writers.front();
    for (const std::uint32_t writer : writers) {
      if (options_.dedup == Dedup::kBalanced &&
          load_[rank_of(entry.records[writer])] < load_[rank_of(entry.records[chosen])])
        chosen = writer;
      if (options_.dedup == Dedup::kOff && !entry.is_replica(writer)) chosen = writer;
    }
    write(entry, chosen, rank_of(entry.records[chosen]));
  }

  void write(const Entry& entry, std::uint32_t box, std::size_t rank) {
    chosen_[entry.records[box]] = 1;
    load_[rank] += std::max<std::uint64_t>(entry.bytes(box), 1);
  }

  /// Equal pieces along the first axis that can be cut, to the writers with the fewest bytes.
  void split(const Entry& entry, std::vector<std::uint32_t> writers) {
    const ShapeView sizes = entry.boxes.sizes(writers.front());
    const std::int64_t extent = sizes[*cut_axis(sizes)];
    const auto load = [&](std::uint32_t writer) { return load_[rank_of(entry.records[writer])]; };
    std::stable_sort(writers.begin(), writers.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return load(a) < load(b); });
    const auto pieces = std::min<std::int64_t>(
        {static_cast<std::int64_t>(writers.size()), extent,
         static_cast<std::int64_t>(2 * entry.bytes(writers.front()) / kSplitBytes)});
    for (std::int64_t i = 0; i < pieces; ++i) {
      const std::uint32_t record = entry.records[writers[static_cast<std::size_t>(i)]];
      const Piece piece{extent / pieces * i + std::min(i, extent % pieces),
                        extent / pieces * (i + 1) + std::min(i + 1, extent % pieces)};
      chosen_[record] = 1;
      pieces_.emplace(record, piece);
      load_[rank_of(record)] += entry.bytes(writers.front()) / static_cast<std::uint64_t>(extent) *
                                static_cast<std::uint64_t>(piece.end - piece.begin);
    }
  }

  /// Whether one rank has it more than once as its main replica.
  bool held_twice(const Entry& entry, std::span<const std::uint32_t> writers) const {
    for (std::size_t i = 1; i < writers.size(); ++i) {
      const bool main = !entry.is_replica(writers[i]) && !entry.is_replica(writers[i - 1]);
      if (main && rank_of(entry.records[writers[i]]) == rank_of(entry.records[writers[i - 1]]))
        return true;
    }
    return false;
  }

  void report_duplicate(const Entry& entry, std::span<const std::uint32_t> writers) {
    std::vector<std::size_t> ranks;
    for (const std::uint32_t writer : writers) {
      if (any_holder_ || !entry.is_replica(writer)) ranks.push_back(rank_of(entry.records[writer]));
    }
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    problems_.push_back(quote(entry.key) + ": " +
                        (entry.kind == WriteItem::Kind::kObject
                             ? "the object"
                             : "the part " + to_string(entry.boxes[writers.front()])) +
                        " is a main replica more than once (on " + ranks_text(ranks) +
                        "); give all but one of them another replica id");
  }

  void collect() {
    for (std::size_t rank = 0; rank < rank_begin_.size(); ++rank) {
      const std::size_t end =
          rank + 1 < rank_begin_.size() ? rank_begin_[rank + 1] : records_.size();
      for (std::size_t record = rank_begin_[rank]; record < end; ++record) {
        if (chosen_[record] != 0) store(rank, record);
      }
    }
    for (TensorStorageMetadata& tensor : plan_.metadata.tensors)
      tensor.places.resize(tensor.chunks.size());
  }

  void store(std::size_t rank, std::size_t record) {
    Metadata& metadata = plan_.metadata;
    Entry& entry = entries_[records_[record].entry];
    const auto item = static_cast<std::uint32_t>(record - rank_begin_[rank]);
    if (entry.kind == WriteItem::Kind::kObject) {
      entry.stored = static_cast<std::uint32_t>(metadata.objects.size());
      metadata.objects.push_back({entry.key, {}});
      plan_.items[rank].push_back({item});
      plan_.slots[rank].push_back({entry.stored, 0, true});
      return;
    }
    if (entry.stored == UINT32_MAX) {
      entry.stored = static_cast<std::uint32_t>(metadata.tensors.size());
      metadata.tensors.push_back({entry.key,
                                  entry.properties,
                                  entry.size,
                                  BoxList(entry.size.size()),
                                  {},
                                  entry.flattened_shape});
      metadata.tensors.back().chunks.reserve(entry.ascending ? entry.boxes.size() : 1);
      metadata.has_mcore_data |= entry.flattened_shape.has_value();
    }
    const std::size_t box = records_[record].box;
    BoxList& chunks = metadata.tensors[entry.stored].chunks;
    plan_.slots[rank].push_back({entry.stored, static_cast<std::uint32_t>(chunks.size()), false});
    const auto cut =
        pieces_.empty() ? pieces_.end() : pieces_.find(static_cast<std::uint32_t>(record));
    if (cut == pieces_.end()) {
      plan_.items[rank].push_back({item});
      chunks.push_back(entry.boxes.offsets(box), entry.boxes.sizes(box));
    } else {
      plan_.items[rank].push_back({item, cut->second.begin, cut->second.end});
      chunks.push_back(piece_of(entry.boxes[box], cut->second.begin, cut->second.end));
    }
  }

  /// Megatron's rule that all objects of a grid are saved, also of one whose objects are replicas
  /// everywhere.
  void check_grids() {
    std::vector<TensorStorageMetadata> grids;  // the objects as chunks of one element each
    std::unordered_map<std::string_view, std::size_t> number;
    for (const Entry& entry : entries_) {
      if (entry.grid_key.empty() || entry.disagrees) continue;
      const auto [found, inserted] = number.try_emplace(entry.grid_key, grids.size());
      if (inserted)
        grids.push_back({entry.grid_key, {}, entry.size, BoxList(entry.size.size()), {}});
      TensorStorageMetadata& grid = grids[found->second];
      if (grid.size != entry.size) {
        problems_.push_back(quote(entry.key) + ": its grid is " + to_string(entry.size) +
                            ", that of another object of " + quote(entry.grid_key) + " " +
                            to_string(grid.size));
      } else if (entry.stored != UINT32_MAX) {
        grid.chunks.push_back(entry.boxes.offsets(0), entry.boxes.sizes(0));
      }
    }
    for (const Entry& entry : entries_) {
      if (entry.kind == WriteItem::Kind::kTensor && number.contains(entry.key)) {
        problems_.push_back(
            quote(entry.key) +
            ": is the key of a tensor and of objects; give one of them another key");
      }
    }
    for (const TensorStorageMetadata& grid : grids) {
      const auto cells = static_cast<std::uint64_t>(numel(grid.size));
      if (grid.chunks.size() >= cells) continue;
      const std::vector<Problem> problems = validate_coverage(grid);
      problems_.push_back(quote(grid.key) + ": " + grouped(cells - grid.chunks.size()) + " of " +
                          grouped(cells) + " objects are missing" +
                          (problems.empty() || !problems.front().region
                               ? ""
                               : ", from offset " + to_string(problems.front().region->offsets) +
                                     " of the grid " + to_string(grid.size)) +
                          "; no rank has them as main replica");
    }
  }

  void check_coverage() {
    check_grids();
    for (const Entry& entry : entries_) {
      if (entry.kind != WriteItem::Kind::kTensor || entry.disagrees) continue;
      TensorStorageMetadata nothing{entry.key,  entry.properties,
                                    entry.size, BoxList(entry.size.size()),
                                    {},         entry.flattened_shape};
      const TensorStorageMetadata& stored =
          entry.stored == UINT32_MAX ? nothing : plan_.metadata.tensors[entry.stored];
      for (const Problem& problem : validate_coverage(stored))
        problems_.push_back(quote(entry.key) + ": " + problem.message +
                            ownership_of(entry, problem));
    }
  }

  std::string ownership_of(const Entry& entry, const Problem& problem) const {
    std::vector<Holding> holdings;
    for (std::size_t box = 0; box < entry.boxes.size(); ++box) {
      holdings.push_back({rank_of(entry.records[box]), static_cast<std::uint32_t>(box),
                          !entry.is_replica(box) || any_holder_});
    }
    return ownership_table(entry.size, entry.boxes, holdings, problem);
  }

  GlobalPlanOptions options_;
  bool any_holder_;  ///< may write and makes that a part is stored, main replica or not
  std::unordered_map<std::string, std::uint32_t> by_key_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> entries_before_;  ///< of the items of the rank before
  std::vector<std::size_t> rank_begin_;        ///< first record of each rank
  std::vector<Record> records_;
  std::vector<std::uint8_t> chosen_;                 ///< of each record, whether its rank writes it
  std::unordered_map<std::uint32_t, Piece> pieces_;  ///< of records that are split
  std::vector<std::uint64_t> load_;
  std::vector<std::string> problems_;
  GlobalPlan plan_;
};

GlobalPlanner::GlobalPlanner(const GlobalPlanOptions& options)
    : work_(std::make_unique<Work>(options)) {}
GlobalPlanner::GlobalPlanner(GlobalPlanner&&) noexcept = default;
GlobalPlanner::~GlobalPlanner() = default;

void GlobalPlanner::add(const SavePlan& plan) {
  work_->add(plan);
}
GlobalPlan GlobalPlanner::finish() && {
  return work_->finish();
}

GlobalPlan plan_global_save(std::span<const SavePlan> plans, const GlobalPlanOptions& options) {
  GlobalPlanner planner(options);
  for (const SavePlan& plan : plans) planner.add(plan);
  return std::move(planner).finish();
}

SavePlan final_plan(const SavePlan& local, std::span<const AssignedItem> items) {
  SavePlan plan;
  plan.reserve(items.size());
  for (const AssignedItem& assigned : items) {
    WriteItem item = local[assigned.item];
    if (const auto axis = cut_axis(item.chunk.sizes); assigned.end != 0 && axis) {
      const std::int64_t row = numel(item.chunk.sizes) / item.chunk.sizes[*axis];
      item.source_begin += assigned.begin * row;
      item.chunk = piece_of(item.chunk, assigned.begin, assigned.end);
      item.nbytes =
          static_cast<std::uint64_t>(numel(item.chunk.sizes)) * item_size(item.properties.dtype);
    }
    plan.push_back(std::move(item));
  }
  return plan;
}

Metadata written_metadata(const GlobalPlan& plan, std::span<const std::vector<StorageInfo>> places,
                          std::span<const std::vector<std::string>> files) {
  Metadata metadata = plan.metadata;
  metadata.files.clear();
  for (std::size_t rank = 0; rank < plan.items.size(); ++rank) {
    const auto first_file = static_cast<std::uint32_t>(metadata.files.size());
    metadata.files.insert(metadata.files.end(), files[rank].begin(), files[rank].end());
    if (places[rank].size() != plan.slots[rank].size()) {
      throw CheckpointError(ErrorCode::kIncomplete,
                            "wrote " + std::to_string(places[rank].size()) +
                                " items, but its plan has " +
                                std::to_string(plan.slots[rank].size()),
                            {.rank = static_cast<int>(rank)});
    }
    for (std::size_t i = 0; i < places[rank].size(); ++i) {
      const GlobalPlan::Slot& slot = plan.slots[rank][i];
      StorageInfo& place = slot.is_object ? metadata.objects[slot.entry].place
                                          : metadata.tensors[slot.entry].places[slot.chunk];
      place = places[rank][i];
      place.file += first_file;
    }
  }
  return metadata;
}

}  // namespace dckpt
