#include "strategies/formats/dcp/storage_records.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "strategies/formats/zstd/zstd.h"

namespace dckpt::dcp {
namespace {

using Id = MetadataGraph::Id;

/// The limit of keys that share a bucket of the hash table, which chosen keys could otherwise make
/// slow.
constexpr std::size_t kMaxCollisions = 256;

/// Assigns the chunks of one tensor their places. A storage record identifies its chunk by the
/// chunk's offsets; its index is a hint that may be absent or wrong. Records mostly come in the
/// order of the chunks or have correct hints; the others are found by a binary search. Linear,
/// except for one sort when that is needed.
class ChunkMatcher {
 public:
  /// Fills `tensor.places`; the tensor must not move.
  explicit ChunkMatcher(TensorStorageMetadata& tensor);

  /// Throws CheckpointError (corrupt) if no chunk has these offsets, or if all chunks that have
  /// them already have a place.
  void add(ShapeView offsets, std::optional<std::int64_t> hint, const StorageInfo& place);

  /// Throws CheckpointError (corrupt) for a chunk without a place. Chunks with the same offsets
  /// (all but one of them are empty, or they overlap) share one record, because Python's readers
  /// look records up by offsets.
  void finish();

 private:
  bool is_free(std::size_t chunk) const noexcept { return tensor_->places[chunk].file == kNowhere; }
  bool take(std::size_t chunk, ShapeView offsets, const StorageInfo& place);
  void prefetch(std::size_t chunk) const noexcept;
  std::uint64_t position(ShapeView offsets) const noexcept;
  bool same(std::uint32_t chunk, ShapeView offsets) const noexcept {
    return equal(tensor_->chunks.offsets(chunk), offsets);
  }
  void sort();

  static constexpr std::uint32_t kNowhere = UINT32_MAX;

  struct Slot {
    std::uint64_t position;
    std::uint32_t chunk;
  };

  TensorStorageMetadata* tensor_;
  std::size_t next_ = 0;  // the chunk after the one found last
  std::size_t placed_ = 0;
  Shape strides_;
  std::vector<Slot> order_;  // chunks by position, then by offsets; filled when needed
};

ChunkMatcher::ChunkMatcher(TensorStorageMetadata& tensor) : tensor_(&tensor) {
  tensor.places.assign(tensor.chunks.size(), StorageInfo{kNowhere, 0, 0});
}

bool ChunkMatcher::take(std::size_t chunk, ShapeView offsets, const StorageInfo& place) {
  if (chunk >= tensor_->chunks.size() || !is_free(chunk) ||
      !equal(tensor_->chunks.offsets(chunk), offsets))
    return false;
  tensor_->places[chunk] = place;
  ++placed_;
  next_ = chunk + 1;
  prefetch(next_ + 1);
  return true;
}

/// Prefetches a chunk. Records mostly come rank by rank, with all tensors of one after the other,
/// so that no cache holds a tensor until its next record.
void ChunkMatcher::prefetch(std::size_t chunk) const noexcept {
  if (chunk >= tensor_->chunks.size()) return;
  __builtin_prefetch(tensor_->chunks.offsets(chunk).data());
  __builtin_prefetch(&tensor_->places[chunk], 1);
}

/// Returns the row-major position of an offset. It wraps around, and offsets of empty chunks may
/// share one with others: good for ordering only.
std::uint64_t ChunkMatcher::position(ShapeView offsets) const noexcept {
  std::uint64_t position = 0;
  for (std::size_t axis = 0; axis < offsets.size(); ++axis)
    position +=
        static_cast<std::uint64_t>(offsets[axis]) * static_cast<std::uint64_t>(strides_[axis]);
  return position;
}

void ChunkMatcher::sort() {
  if (!order_.empty()) return;
  const BoxList& chunks = tensor_->chunks;
  strides_ = row_major_strides(tensor_->size);
  order_.reserve(chunks.size());
  for (std::uint32_t chunk = 0; chunk < chunks.size(); ++chunk)
    order_.push_back({position(chunks.offsets(chunk)), chunk});
  const auto before = [&](const Slot& a, const Slot& b) {
    if (a.position != b.position) return a.position < b.position;
    return std::ranges::lexicographical_compare(chunks.offsets(a.chunk), chunks.offsets(b.chunk));
  };
  if (!std::is_sorted(order_.begin(), order_.end(), before))
    std::sort(order_.begin(), order_.end(), before);
}

void ChunkMatcher::add(ShapeView offsets, std::optional<std::int64_t> hint,
                       const StorageInfo& place) {
  if (hint && take(static_cast<std::size_t>(*hint), offsets, place)) return;
  if (take(next_, offsets, place)) return;
  bool found = false;
  bool taken = false;
  if (offsets.size() == tensor_->chunks.dims()) {
    sort();
    auto slot = std::lower_bound(
        order_.begin(), order_.end(), position(offsets), [&](const Slot& at, std::uint64_t wanted) {
          if (at.position != wanted) return at.position < wanted;
          return std::ranges::lexicographical_compare(tensor_->chunks.offsets(at.chunk), offsets);
        });
    for (; slot != order_.end() && same(slot->chunk, offsets); ++slot) {
      found = true;
      taken |= take(slot->chunk, offsets, place);
    }
  }
  if (!found)
    throw_error(ErrorCode::kCorrupt,
                "a storage record names a chunk at {}, where the tensor has none",
                to_string(offsets));
  if (!taken)
    throw_error(ErrorCode::kCorrupt, "two storage records name the chunk at " + to_string(offsets));
}

void ChunkMatcher::finish() {
  if (placed_ == tensor_->chunks.size()) return;
  sort();
  for (auto run = order_.begin(); run != order_.end();) {
    const ShapeView offsets = tensor_->chunks.offsets(run->chunk);
    const auto end = std::find_if(run, order_.end(),
                                  [&](const Slot& slot) { return !same(slot.chunk, offsets); });
    const auto placed =
        std::find_if(run, end, [&](const Slot& slot) { return !is_free(slot.chunk); });
    if (placed == end) {
      throw_error(ErrorCode::kCorrupt, "no storage record says where chunk {} of the tensor is",
                  to_string(tensor_->chunks[run->chunk]));
    }
    const StorageInfo place = tensor_->places[placed->chunk];
    std::for_each(run, end, [&](const Slot& slot) {
      if (is_free(slot.chunk)) tensor_->places[slot.chunk] = place;
    });
    run = end;
  }
}

class StorageRecords {
 public:
  StorageRecords(const MetadataGraph& graph, const StoredKeys& keys, Metadata& metadata)
      : graph_(graph), keys_(keys), metadata_(metadata) {}

  void read(std::span<const Id> items) {
    std::vector<ChunkMatcher> matchers;
    matchers.reserve(metadata_.tensors.size());
    for (TensorStorageMetadata& tensor : metadata_.tensors) matchers.emplace_back(tensor);
    std::vector<bool> placed(metadata_.objects.size(), false);

    Shape offsets;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (!graph_.is_object_of(items[i], index_class_)) {
        throw_error(ErrorCode::kCorrupt, "a key of storage_data is {} (expected: MetadataIndex)",
                    graph_.describe(items[i]));
      }
      const auto index = graph_.fields(items[i], index_class_);
      const Id fqn = index[0];
      const Id offset = index[1];
      const Id hint = index[2];
      const std::string_view key = graph_.text(fqn, "the fqn of a storage record");
      for_key(key, [&] {
        const StorageInfo place = read_place(items[i + 1]);
        const StoredKeys::Entry* const entry = entry_of_record(fqn, key);
        if (entry == nullptr)
          throw_error(ErrorCode::kCorrupt,
                      "a storage record is for a key that state_dict_metadata does not have");
        const std::uint32_t position = entry->position;
        if (entry->is_tensor) {
          if (graph_.is_none(offset))
            throw_error(ErrorCode::kCorrupt, "a storage record of the tensor has no offset");
          graph_.shape(offset, "the offset of a storage record", offsets);
          matchers[position].add(offsets, graph_.integer(hint), place);
        } else {
          if (!graph_.is_none(offset))
            throw_error(ErrorCode::kCorrupt,
                        "a storage record of the object has an offset, as only tensors have");
          if (placed[position])
            throw_error(ErrorCode::kCorrupt, "two storage records name the object");
          placed[position] = true;
          metadata_.objects[position].place = place;
        }
      });
    }
    for (std::size_t i = 0; i < matchers.size(); ++i) {
      for_key(metadata_.tensors[i].key, [&] { matchers[i].finish(); });
    }
    for (std::size_t i = 0; i < placed.size(); ++i) {
      for_key(metadata_.objects[i].key, [&] {
        if (!placed[i])
          throw_error(ErrorCode::kCorrupt, "no storage record says where the object is");
      });
    }
  }

 private:
  /// Returns the entry of a record's key. Records mostly come with all chunks of a key one after
  /// the other, or rank by rank with the keys in one order, and then need no lookup.
  const StoredKeys::Entry* entry_of_record(Id fqn, std::string_view key) {
    if (fqn == last_fqn_) return last_entry_;
    const StoredKeys::Entry* entry = keys_.next_after(last_entry_);
    if (entry == nullptr || entry->key != key) entry = keys_.find(key);
    if (entry == nullptr) return nullptr;
    last_fqn_ = fqn;
    return last_entry_ = entry;
  }

  StorageInfo read_place(Id id) {
    if (!graph_.is_object_of(id, place_class_)) {
      if (graph_.class_of(id))
        throw_error(ErrorCode::kUnsupported,
                    "a storage record is {}; this version does not know its storage writer",
                    graph_.describe(id));
      throw_error(ErrorCode::kCorrupt, "a storage record is {} (expected: _StorageInfo)",
                  graph_.describe(id));
    }
    const auto [path, offset_id, length_id, crc, transforms, common_crc] =
        graph_.fields(id, place_class_);
    const StorageCodec codec = read_codec(transforms);
    const std::uint32_t file = read_file(path);
    const std::int64_t offset = graph_.count(offset_id, "the file offset of a storage record");
    const std::int64_t length = graph_.count(length_id, "the length of a storage record");
    if (!checked_add(offset, length))
      throw_error(ErrorCode::kCorrupt,
                  "the offset and length of a storage record do not fit 63 bits together");
    if (common_crc != MetadataGraph::kAbsent)
      metadata_.common_crc = read_crc(common_crc, kCommonCrc);
    return {file, static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length), codec,
            crc == MetadataGraph::kAbsent ? 0 : read_crc(crc, kRecordCrc)};
  }

  std::uint32_t read_crc(Id id, std::string_view what) const {
    const std::int64_t crc = graph_.count(id, what);
    if (crc > UINT32_MAX)
      throw_error(ErrorCode::kCorrupt, "{} is {}, which has more than 32 bits", what, crc);
    return static_cast<std::uint32_t>(crc);
  }

  StorageCodec read_codec(Id id) const {
    if (graph_.is_none(id)) return StorageCodec::kPlain;
    const auto transforms = graph_.list_or_tuple(id, "transform_descriptors");
    if (transforms.empty()) return StorageCodec::kPlain;
    const auto is_zstd = [&](Id transform) {
      return graph_.is_text(transform) && graph_.nodes().text(transform) == kZstdTransform;
    };
    if (transforms.size() == 1 && is_zstd(transforms[0])) {
      require_zstd();
      return StorageCodec::kZstd;
    }
    const auto unknown = std::find_if_not(transforms.begin(), transforms.end(), is_zstd);
    const Id named = unknown == transforms.end() ? transforms[0] : *unknown;
    throw_error(
        ErrorCode::kUnsupported,
        "the stored bytes were transformed {}by {}, which cannot be undone here; save again "
        "without transforms, or with {} alone",
        unknown == transforms.end() ? "more than once " : "",
        graph_.is_text(named) ? quote(graph_.text(named, "a transform")) : graph_.describe(named),
        quote(kZstdTransform));
  }

  /// Returns the number of a file. Mostly all records of a file refer to one str, and come one
  /// after the other or in turns with those of other files.
  std::uint32_t read_file(Id id) {
    for (const std::uint32_t likely : {last_file_, last_file_ + 1, 0U}) {
      if (likely < path_of_file_.size() && path_of_file_[likely] == id) return last_file_ = likely;
    }
    std::string name = graph_.path(id, "the relative_path of a storage record");
    name_components(
        name);  // refuses absolute and malformed names and those that leave the checkpoint
    if (name.find('\\') != std::string::npos || !is_utf8(name)) {
      throw_error(ErrorCode::kCorrupt,
                  "the file name {} of a storage record has a backslash or is not UTF-8, which "
                  "systems understand differently",
                  quote(name));
    }
    const auto [file, is_new] =
        files_.try_emplace(std::move(name), static_cast<std::uint32_t>(metadata_.files.size()));
    if (is_new) {
      metadata_.files.push_back(file->first);
      path_of_file_.push_back(id);
    }
    last_file_ = file->second;
    path_of_file_[last_file_] = id;
    return last_file_;
  }

  const MetadataGraph& graph_;
  const StoredKeys& keys_;
  Metadata& metadata_;
  RowClass<3> index_class_{kIndexRow};
  RowClass<6> place_class_{kPlaceRow};
  Id last_fqn_ = MetadataGraph::kAbsent;
  const StoredKeys::Entry* last_entry_ = nullptr;
  std::map<std::string, std::uint32_t> files_;
  std::vector<Id> path_of_file_;  // the node that named the file last
  std::uint32_t last_file_ = 0;
};

}  // namespace

void StoredKeys::reserve(std::size_t count) {
  entries_.reserve(count);
  position_.reserve(count);
}

void StoredKeys::add(const Entry& entry) {
  if (!position_.try_emplace(entry.key, static_cast<std::uint32_t>(entries_.size())).second)
    throw_error(ErrorCode::kCorrupt, "state_dict_metadata names the key twice");
  if (position_.bucket_size(position_.bucket(entry.key)) > kMaxCollisions) {
    throw_error(ErrorCode::kUnsupported, "more than {} keys have the same hash, which is the limit",
                kMaxCollisions);
  }
  entries_.push_back(entry);
}

const StoredKeys::Entry* StoredKeys::find(std::string_view key) const {
  const auto found = position_.find(key);
  return found == position_.end() ? nullptr : &entries_[found->second];
}

const StoredKeys::Entry* StoredKeys::next_after(const Entry* entry) const noexcept {
  if (entries_.empty()) return nullptr;
  return entry == nullptr || entry == &entries_.back() ? &entries_.front() : entry + 1;
}

void read_storage_records(const MetadataGraph& graph, std::span<const MetadataGraph::Id> items,
                          const StoredKeys& keys, Metadata& metadata) {
  StorageRecords(graph, keys, metadata).read(items);
}

}  // namespace dckpt::dcp
