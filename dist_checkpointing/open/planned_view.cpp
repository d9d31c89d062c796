#include "dist_checkpointing/open/planned_view.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dist_checkpointing/planner/foreign_code.h"
#include "dist_checkpointing/planner/load_plan_checks.h"
#include "dist_checkpointing/planner/load_planner.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "mapping/base/error.h"
#include "mapping/base/renamed_path.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/save/assigned_item.h"
#include "mapping/planning/validate.h"
#include "strategies/contract/common_state.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/contract/made_chunk.h"
#include "strategies/contract/recent_tiles.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

// A piece is made as a whole; a few of them are kept.
constexpr std::uint64_t kMadeAtOnce = std::uint64_t{32} << 20;
constexpr std::size_t kKeptPieces = 4;

/// Returns the boxes of a tensor that are made at once: its chunks, cut into rows where they are
/// large.
std::vector<Box> pieces_of(const TensorStorageMetadata& tensor) {
  std::vector<Box> chunks;
  if (!tensor.flattened_shape && !tensor.chunks.empty() && validate_coverage(tensor).empty())
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) chunks.push_back(tensor.chunks[i]);
  else
    chunks.push_back(whole(tensor.global_shape()));
  std::vector<Box> pieces;
  for (const Box& chunk : chunks) {
    const auto bytes =
        static_cast<std::uint64_t>(numel(chunk.sizes)) * item_size(tensor.properties.dtype);
    const auto axis = cut_axis(chunk.sizes);
    if (!axis || bytes <= kMadeAtOnce) {
      pieces.push_back(chunk);
      continue;
    }
    const std::int64_t rows = chunk.sizes[*axis];
    const auto step = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(kMadeAtOnce / (bytes / static_cast<std::uint64_t>(rows))));
    for (std::int64_t row = 0; row < rows; row += step)
      pieces.push_back(piece_of(chunk, row, std::min(rows, row + step)));
  }
  return pieces;
}

/// The tensors of a planner, and the items by which their pieces are made.
class PlannedContents {
 public:
  PlannedContents(std::shared_ptr<const CheckpointReader> source, const StrategySpec& planner,
                  const Location& location)
      : source_(std::move(source)), who_(planner_text(planner.name)) {
    options_.registered_planner = planner;
    planner_ = make_load_planner(options_);
    for (std::size_t i = 0; i < stored().size(); ++i) position_.emplace(stored()[i].key, i);
    run_foreign(who_, {}, [&] { plan(location); });
  }

  /// A tensor of the planner: a stored one as it is, or one that is made.
  struct Seen {
    TensorStorageMetadata tensor;
    std::optional<std::size_t> stored{};  ///< set if it is seen as it is
    std::size_t first_piece = 0;
    std::size_t origin = 0;  ///< the stored tensor that is read first for it
  };
  const std::vector<Seen>& tensors() const { return tensors_; }

  const LoadPlanner& planner() const { return *planner_; }
  const std::string& who() const { return who_; }

  /// Returns a piece, made of what is read for its items.
  std::shared_ptr<const Tensor> piece(std::size_t number) const {
    return recent_.get(number, [&] { return made(number); });
  }

 private:
  const std::vector<TensorStorageMetadata>& stored() const { return source_->metadata().tensors; }

  void plan(const Location& location) {
    const auto setup_with = [&](std::span<const ShardedTensor> wanted) {
      return LoadSetup{.wanted = wanted,
                       .metadata = source_->metadata(),
                       .location = location,
                       .options = options_};
    };
    std::set<std::string> names;
    for (const BytesStorageMetadata& object : source_->metadata().objects) names.insert(object.key);
    for (TensorStorageMetadata& tensor : planner_->contents(setup_with({}))) {
      if (!names.insert(tensor.key).second)
        throw_error(ErrorCode::kMismatch, {.key = tensor.key},
                    "the planner's contents() has two tensors, or a tensor and an object, of this "
                    "name");
      Seen& seen = tensors_.emplace_back(Seen{std::move(tensor), std::nullopt, wanted_.size()});
      for (const Box& piece : pieces_of(seen.tensor)) {
        ShardedTensor& wanted = wanted_.emplace_back(ShardedTensor::from_box(
            seen.tensor.key, Tensor::meta(seen.tensor.properties.dtype, piece.sizes),
            seen.tensor.global_shape(), piece.offsets));
        wanted.data.reset();
      }
    }
    planner_->set_up_planner(setup_with(wanted_));
    LoadPlan plan = planner_->create_local_plan();
    planner_->forget_setup();
    check_load_plan(plan, wanted_, *planner_);
    plan = planner_->finish_plan(std::move(plan));
    check_load_plan(plan, wanted_, *planner_);
    items_.resize(wanted_.size());
    for (LoadItem& item : plan) items_[item.target].push_back(std::move(item));
    std::vector<Seen> seen = std::exchange(tensors_, {});
    for (std::size_t i = 0; i < seen.size(); ++i)
      take(std::move(seen[i]), i + 1 < seen.size() ? seen[i + 1].first_piece : wanted_.size());
  }

  /// Adds a tensor whose pieces end before `end`.
  void take(Seen seen, std::size_t end) {
    const std::string& key = seen.tensor.key;
    std::size_t planned = 0;
    bool as_stored = true;
    for (std::size_t piece = seen.first_piece; piece < end; ++piece) {
      planned += items_[piece].empty() ? 0 : 1;
      as_stored &= items_[piece].size() == 1 && is_stored(items_[piece].front());
    }
    if (planned == 0) return;  // the planner leaves it out
    if (planned != end - seen.first_piece)
      throw_error(
          ErrorCode::kMismatch, {.key = key},
          "the planner leaves out some pieces of a tensor; plan all of its pieces, or none");
    seen.origin = position_of(items_[seen.first_piece].front());
    if (as_stored) {
      seen.stored = position_.at(key);
      seen.tensor = stored()[*seen.stored];
    } else {
      seen.tensor.flattened_shape.reset();
      seen.tensor.size = wanted_[seen.first_piece].global_shape;
      seen.tensor.chunks = BoxList(seen.tensor.size.size());
      seen.tensor.places.clear();
      const auto& places = stored()[seen.origin].places;
      for (std::size_t piece = seen.first_piece; piece < end; ++piece) {
        seen.tensor.chunks.push_back(wanted_[piece].global_box());
        seen.tensor.places.push_back(places.empty() ? StorageInfo{} : places.front());
        seen.tensor.places.back().crc = 0;
      }
    }
    tensors_.push_back(std::move(seen));
  }

  /// Returns whether an item reads what is stored under its key, in the same place and form.
  bool is_stored(const LoadItem& item) const {
    const ShardedTensor& wanted = wanted_[item.target];
    return !planner_->resolves(item) && !item.part && item.tensor.key == wanted.key &&
           item.tensor.global_shape == wanted.global_shape &&
           item.tensor.global_offset == wanted.global_offset && position_.contains(wanted.key) &&
           stored()[position_.at(wanted.key)].properties.dtype == wanted.dtype &&
           stored()[position_.at(wanted.key)].global_shape() == wanted.global_shape;
  }

  std::size_t position_of(const LoadItem& item) const {
    const auto found = position_.find(item.tensor.key);
    if (found == position_.end())
      throw_error(ErrorCode::kMismatch, {.key = wanted_[item.target].key},
                  "the planner reads {} for it, which the checkpoint does not have",
                  quote(item.tensor.key));
    return found->second;
  }

  /// Reads a box of a stored tensor into memory of its shape.
  void read(const LoadItem& item, const Tensor& into) const {
    const ShardedTensor& tensor = item.tensor;
    const std::size_t position = position_of(item);
    if (stored()[position].properties.dtype != tensor.dtype ||
        stored()[position].global_shape() != tensor.global_shape)
      throw_error(ErrorCode::kMismatch, {.key = tensor.key},
                  "the planner reads {} {}, but {} {} is stored", to_string(tensor.dtype),
                  to_string(tensor.global_shape), to_string(stored()[position].properties.dtype),
                  to_string(stored()[position].global_shape()));
    WantedShard wanted{.tensor = static_cast<std::uint32_t>(position), .box = tensor.global_box()};
    if (!fits(wanted.box, tensor.global_shape))
      throw_error(ErrorCode::kMismatch, {.key = tensor.key},
                  "the planner reads {}, which does not lie inside the shape {}",
                  to_string(wanted.box), to_string(tensor.global_shape));
    if (tensor.flattened_range)
      wanted.range = WantedShard::Range{tensor.flattened_range->begin, tensor.flattened_range->end};
    wanted.strides = into.strides();
    read_tensors(*source_, plan_reads(source_->metadata(), {&wanted, 1}), {&into, 1},
                 {.threads = 1});
  }

  Tensor made(std::size_t number) const {
    const ShardedTensor& wanted = wanted_[number];
    Tensor piece = Tensor::empty(wanted.dtype, wanted.local_shape);
    struct Part {
      std::vector<LoadItem> items{};
      std::vector<Tensor> read{};
    };
    std::map<std::pair<Shape, Shape>, Part> parts;  // by offsets and sizes
    run_foreign(who_, {.key = wanted.key}, [&] {
      for (const LoadItem& item : items_[number]) {
        if (!planner_->resolves(item)) {
          read(item, part_of(piece, item));
          continue;
        }
        const Box box = part_box(item, wanted.local_shape);
        Part& part = parts[{box.offsets, box.sizes}];
        part.items.push_back(item);
        part.read.push_back(memory_for(*planner_, item));
        read(item, part.read.back());
      }
      for (auto& [place, part] : parts)
        commit_part(*planner_, part.items, std::move(part.read), part_of(piece, part.items[0]));
    });
    return piece;
  }

  const std::shared_ptr<const CheckpointReader> source_;
  const std::string who_;
  LoadOptions options_;
  std::unique_ptr<LoadPlanner> planner_;
  std::unordered_map<std::string_view, std::size_t> position_;  ///< of stored tensors
  std::vector<Seen> tensors_;
  std::vector<ShardedTensor> wanted_;         ///< pieces of all tensors
  std::vector<std::vector<LoadItem>> items_;  ///< by piece
  mutable RecentTiles<std::size_t, Tensor> recent_{kKeptPieces};
};

class PlannedChunk final : public MadeChunk {
 public:
  PlannedChunk(const ReadableFile& file, DType dtype, Box box, const PlannedContents& contents,
               std::size_t piece)
      : MadeChunk(file, dtype, std::move(box)), contents_(contents), piece_(piece) {}

 private:
  void make(std::int64_t first, MutableByteView elements) const override {
    const std::shared_ptr<const Tensor> made = contents_.piece(piece_);
    const ByteView from = made->bytes().subspan(static_cast<std::size_t>(first) * item());
    std::copy_n(from.begin(), elements.size(), elements.begin());
  }

  const PlannedContents& contents_;
  const std::size_t piece_;
};

class PlannedView final : public ForwardingReader {
 public:
  PlannedView(const std::shared_ptr<const CheckpointReader>& source, const StrategySpec& planner,
              const Location& location)
      : ForwardingReader(source),
        contents_(source, planner, location),
        metadata_(source->metadata()) {
    metadata_.tensors.clear();
    for (const PlannedContents::Seen& seen : contents_.tensors())
      metadata_.tensors.push_back(seen.tensor);
    if (metadata_.storage_meta) metadata_.storage_meta->load_planner.reset();
    set_paths();
  }

  const Metadata& metadata() const noexcept override { return metadata_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    const PlannedContents::Seen& seen = contents_.tensors().at(tensor);
    if (seen.stored) return source_->locate(*seen.stored, chunk, file);
    const TensorStorageMetadata& made = metadata_.tensors[tensor];
    return payload_of(std::make_shared<PlannedChunk>(
        file, made.properties.dtype, made.chunks[chunk], contents_, seen.first_piece + chunk));
  }

  Bytes object_bytes(std::size_t object) const override {
    const std::string& key = metadata_.objects[object].key;
    Bytes stored = source_->object_bytes(object);
    const Value value = source_->decode_object(object, stored);
    const Value made = run_foreign(contents_.who(), {.key = key},
                                   [&] { return contents_.planner().load_bytes(key, value); });
    return made == value ? std::move(stored) : stored_object(made, info().conventions);
  }

  /// Returns false for elements that are made: they have no checksum, and those of the stored ones
  /// are compared when they are read.
  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    const PlannedContents::Seen& seen = contents_.tensors().at(tensor);
    return seen.stored && source_->check_chunk(*seen.stored, chunk, file);
  }

 private:
  /// Gives each tensor the path of its key or, if that is new, of the first tensor it is made of.
  void set_paths() {
    if (metadata_.paths.empty()) return;
    std::unordered_map<std::string_view, const KeyPath*> stored;
    for (const auto& [key, path] : source_->metadata().paths) stored.emplace(key, &path);
    metadata_.paths.clear();
    for (const PlannedContents::Seen& seen : contents_.tensors()) {
      const std::string& key = seen.tensor.key;
      const std::string& origin = source_->metadata().tensors[seen.origin].key;
      if (const auto same = stored.find(key); same != stored.end())
        metadata_.paths.emplace_back(key, *same->second);
      else if (const auto first = stored.find(origin); first != stored.end())
        metadata_.paths.emplace_back(key, renamed_path(*first->second, key));
    }
    for (const BytesStorageMetadata& object : metadata_.objects) {
      if (const auto found = stored.find(object.key); found != stored.end())
        metadata_.paths.emplace_back(object.key, *found->second);
    }
  }

  PlannedContents contents_;
  Metadata metadata_;
};

/// Returns a reader of what a load planner makes of a checkpoint: LoadPlanner::contents() and the
/// objects as load_bytes() returns them.
std::unique_ptr<CheckpointReader> planned_view(std::unique_ptr<CheckpointReader> reader,
                                               const StrategySpec& planner,
                                               const Location& location) {
  const std::shared_ptr<const CheckpointReader> source = std::move(reader);
  return std::make_unique<PlannedView>(source, planner, location);
}

}  // namespace

void require_planner(const CheckpointReader& reader) {
  const auto& meta = reader.metadata().storage_meta;
  if (!meta || !meta->load_planner) return;
  const bool known = std::ranges::find(load_planners(), *meta->load_planner,
                                       &LoadPlannerEntry::name) != load_planners().end();
  throw_error(
      ErrorCode::kUnsupported,
      "a planner has saved the checkpoint, and the load planner {} reads what it stores: {}. "
      "load.planner: {{kind: stored}} takes what is stored as it is",
      quote(*meta->load_planner),
      known ? "name it in load.planner.kind"
            : "run a program that registers it (register_planner(), for the tool before "
              "cli_main())");
}

std::unique_ptr<CheckpointReader> with_planner(std::unique_ptr<CheckpointReader> reader,
                                               const StrategySpec& planner,
                                               const Location& location) {
  if (planner.name.empty() || planner.name == kStoredPlanner) return reader;
  if (planner.name != kAutoStrategy) return planned_view(std::move(reader), planner, location);
  const auto& meta = reader->metadata().storage_meta;
  if (!meta || !meta->load_planner) return reader;
  const StrategySpec named{.name = *meta->load_planner};
  if (std::ranges::find(load_planners(), named.name, &LoadPlannerEntry::name) ==
      load_planners().end())
    require_planner(*reader);
  return planned_view(std::move(reader), named, location);
}

}  // namespace dckpt
