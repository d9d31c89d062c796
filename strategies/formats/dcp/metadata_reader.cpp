#include "strategies/formats/dcp/metadata_reader.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"
#include "mapping/planning/reformulation.h"
#include "strategies/formats/dcp/chunk_matcher.h"
#include "strategies/formats/dcp/metadata_graph.h"
#include "strategies/formats/pickle/graph.h"

namespace dckpt {
namespace {

using dcp::ChunkMatcher;
using dcp::GlobalName;
using dcp::kCachedPlan;
using dcp::MetadataGraph;
using dcp::RowClass;
using dcp::throw_corrupt;
using Id = MetadataGraph::Id;
using Kind = MetadataGraph::Kind;

/// Axes of all boxes together, per node of the pickle. A pickle may refer to one box again and
/// again in two bytes each; real ones, where each chunk takes ten nodes or more, stay far below.
constexpr std::uint64_t kMaxBoxAxesPerNode = 8;

/// Keys that share a bucket of the hash table; chosen keys could otherwise make it slow.
constexpr std::size_t kMaxCollisions = 256;

[[noreturn]] void throw_unsupported(const std::string& message) {
  throw CheckpointError(ErrorCode::kUnsupported, message);
}

/// Runs `body`; errors that leave it get the key. Unlike with_context it copies the key only then.
template <typename Body>
decltype(auto) for_key(std::string_view key, Body&& body) {
  try {
    return body();
  } catch (const CheckpointError& error) {
    throw error.with({.key = std::string(key)});
  }
}

/// Refuses shapes whose strides or bytes overflow, also when an extent of 0 would hide it.
void check_bytes(ShapeView shape, DType dtype, std::string_view what) {
  std::optional<std::int64_t> bytes = static_cast<std::int64_t>(item_size(dtype));
  for (const std::int64_t extent : shape) {
    bytes = checked_mul(*bytes, std::max<std::int64_t>(extent, 1));
    if (!bytes)
      throw_corrupt(
          str_format("{} {} has more bytes than a file can have", what, to_string(shape)));
  }
}

class MetadataReader {
 public:
  MetadataReader(const pickle::Graph& nodes, std::uint64_t pickle_size)
      : graph_(nodes), pickle_size_(pickle_size) {}

  Metadata read() {
    refuse_persistent_ids();
    const Id root = graph_.nodes().root();
    const GlobalName type = graph_.class_of(root);
    if (!type.is(dcp::kMetadataModule, "Metadata") &&
        !type.is(dcp::kMegatronModule, "MCoreMetadata")) {
      throw_corrupt(
          str_format("the pickle holds {} (expected: DCP's Metadata)", graph_.describe(root)));
    }
    const auto fields = graph_.attributes(root);
    read_entries(graph_.dict(graph_.find(fields, "state_dict_metadata"), "state_dict_metadata"));
    read_mcore_data(graph_.find(fields, "mcore_data"));
    read_records(graph_.dict(graph_.find(fields, "storage_data"), "storage_data"));
    read_paths(graph_.find(fields, "planner_data"), metadata_.paths, [&](std::string_view key) {
      if (entry_of_key_.contains(key)) return true;
      metadata_.stray_paths.emplace_back(key);
      return false;
    });
    read_paths(graph_.find(fields, dcp::kCommonPaths), metadata_.common_paths,
               [&](std::string_view key) {
                 const auto found = entry_of_key_.find(key);
                 return found == entry_of_key_.end() || !entries_[found->second].is_tensor;
               });
    read_storage_meta(graph_.find(fields, "storage_meta"));
    read_cached_plans(graph_.find(fields, "all_local_plans"));
    if (const Id version = graph_.find(fields, "version"); graph_.is_text(version))
      metadata_.version = std::string(graph_.text(version, "version"));
    return std::move(metadata_);
  }

 private:
  /// What a key stands for: a position in the tensors or in the objects.
  struct Entry {
    std::string_view key;  // in the graph
    bool is_tensor = false;
    std::uint32_t position = 0;
  };

  /// They stand for storages in files of torch.save; here an unpickler fails on them wherever they
  /// are.
  void refuse_persistent_ids() const {
    if (!graph_.nodes().persistent().empty())
      throw_corrupt("the pickle has a persistent id, which has no meaning here");
  }

  void read_entries(std::span<const Id> items) {
    entries_.reserve(items.size() / 2);
    entry_of_key_.reserve(items.size() / 2);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string_view key = graph_.text(items[i], "a key of state_dict_metadata");
      for_key(key, [&] {
        if (key.empty() || !is_utf8(key))
          throw_corrupt("a key of state_dict_metadata is empty or not UTF-8");
        const GlobalName type = graph_.class_of(items[i + 1]);
        const bool is_tensor = type.is(dcp::kMetadataModule, "TensorStorageMetadata");
        if (!is_tensor && !type.is(dcp::kMetadataModule, "BytesStorageMetadata")) {
          throw_corrupt(str_format(
              "state_dict_metadata has {} (expected: the metadata of a tensor or of bytes)",
              graph_.describe(items[i + 1])));
        }
        const std::size_t position =
            is_tensor ? metadata_.tensors.size() : metadata_.objects.size();
        if (!entry_of_key_.try_emplace(key, static_cast<std::uint32_t>(entries_.size())).second) {
          throw_corrupt("state_dict_metadata names the key twice");
        }
        if (entry_of_key_.bucket_size(entry_of_key_.bucket(key)) > kMaxCollisions) {
          throw_unsupported(str_format("more than {} keys have the same hash, which is the limit",
                                       kMaxCollisions));
        }
        const auto order = static_cast<std::uint32_t>(entries_.size());
        entries_.push_back({key, is_tensor, static_cast<std::uint32_t>(position)});
        if (is_tensor) {
          read_tensor(items[i + 1], metadata_.tensors.emplace_back());
          metadata_.tensors.back().key = std::string(key);
          metadata_.tensors.back().order = order;
        } else {
          metadata_.objects.push_back({std::string(key), {}, order});
        }
      });
    }
  }

  void read_tensor(Id id, TensorStorageMetadata& tensor) {
    const auto fields = graph_.attributes(id);
    tensor.properties = read_properties(graph_.find(fields, "properties"));
    graph_.shape(graph_.find(fields, "size"), "the size of the tensor", tensor.size);
    check_bytes(tensor.size, tensor.properties.dtype, "a tensor of size");

    const auto chunks = graph_.list_or_tuple(graph_.find(fields, "chunks"), "the list of chunks");
    box_axes_ += chunks.size() * std::max<std::size_t>(tensor.size.size(), 1);
    if (box_axes_ / kMaxBoxAxesPerNode > graph_.nodes().size())
      throw_corrupt("the list of chunks repeats the same chunks over and over");
    tensor.chunks = BoxList(tensor.size.size());
    tensor.chunks.reserve(chunks.size());
    Box box;
    for (const Id chunk : chunks) {
      if (!graph_.is_object_of(chunk, chunk_class_)) {
        throw_corrupt(str_format("the list of chunks has {} (expected: ChunkStorageMetadata)",
                                 graph_.describe(chunk)));
      }
      const auto [offsets, sizes] = graph_.fields(chunk, chunk_class_);
      graph_.shape(offsets, "an offset of a chunk", box.offsets);
      graph_.shape(sizes, "a size of a chunk", box.sizes);
      if (!fits(box, tensor.size)) {
        throw_corrupt(
            str_format("the chunk with offsets {} and sizes {} is not inside the tensor of size {}",
                       to_string(box.offsets), to_string(box.sizes), to_string(tensor.size)));
      }
      tensor.chunks.push_back(box);
    }
  }

  TensorProperties read_properties(Id id) {
    const GlobalName type = graph_.class_of(id);
    // Up to torch 2.2 the class lived with the sharded tensors.
    if (!type.is(dcp::kMetadataModule, "TensorProperties") &&
        !type.is("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties")) {
      throw_corrupt(str_format("the properties of the tensor are {} (expected: TensorProperties)",
                               graph_.describe(id)));
    }
    const Id state = graph_.state(id);
    Id parts[5];  // dtype, layout, requires_grad, memory format, pin_memory
    if (state != MetadataGraph::kAbsent && graph_.kind(state) == Kind::kTuple) {
      const auto members = graph_.list_or_tuple(state, "the state");
      if (members.size() < std::size(parts))
        throw_corrupt(str_format("TensorProperties has {} (expected: at least 5)",
                                 counted(members.size(), "field")));
      std::copy_n(members.begin(), std::size(parts),
                  parts);  // torch 2.15 adds the strides of the tensor in memory
    } else {
      const auto fields = graph_.attributes(id);
      static constexpr std::string_view kNames[] = {"dtype", "layout", "requires_grad",
                                                    "memory_format", "pin_memory"};
      std::transform(std::begin(kNames), std::end(kNames), parts,
                     [&](std::string_view name) { return graph_.find(fields, name); });
    }
    TensorProperties properties;
    properties.dtype = read_dtype(parts[0]);
    check_layout(parts[1]);
    if (!graph_.is_none(parts[2]))
      properties.requires_grad = graph_.boolean(parts[2], "requires_grad");
    if (!graph_.is_none(parts[3])) properties.memory_format = read_memory_format(parts[3]);
    if (!graph_.is_none(parts[4])) properties.pin_memory = graph_.boolean(parts[4], "pin_memory");
    return properties;
  }

  DType read_dtype(Id id) const {
    const GlobalName name = graph_.global(id);
    if (name.module != "torch" || name.name.find('.') != std::string_view::npos) {
      throw_corrupt(str_format("the dtype of the tensor is {} (expected: a dtype of torch)",
                               graph_.describe(id)));
    }
    if (const std::optional<DType> dtype = parse_dtype(name.name)) return *dtype;
    throw_unsupported(str_format("the tensor has dtype {}, which this version does not know",
                                 quote("torch." + std::string(name.name))));
  }

  void check_layout(Id id) const {
    if (graph_.is_none(id) || graph_.global(id).is("torch", "strided")) return;
    if (!graph_.called(id).is("torch.serialization", "_get_layout") ||
        graph_.arguments(id).size() != 1) {
      throw_corrupt(str_format("the layout of the tensor is {} (expected: a layout of torch)",
                               graph_.describe(id)));
    }
    const std::string_view name = graph_.text(graph_.arguments(id)[0], "the layout of the tensor");
    if (name != "torch.strided")
      throw_unsupported(
          str_format("the tensor has layout {}; only torch.strided can be read", quote(name)));
  }

  /// An enum by value (`E(0)`), by name (`getattr(E, 'TORCH_…')`, Python 3.11.0 to 3.11.3), or the
  /// memory format of torch itself.
  TensorProperties::MemoryFormat read_memory_format(Id id) const {
    static constexpr std::string_view kNames[] = {"TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST",
                                                  "TORCH_PRESERVE_FORMAT"};
    static constexpr std::string_view kFormats[] = {"contiguous_format", "channels_last",
                                                    "preserve_format"};
    const auto is_enum = [](const GlobalName& name) {
      return name.is(dcp::kMetadataModule, "_MEM_FORMAT_ENCODING") ||
             name.is("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING");
    };
    const GlobalName function = graph_.called(id);
    std::size_t found = std::size(kNames);
    if (const GlobalName format = graph_.global(id); format.module == "torch") {
      found = static_cast<std::size_t>(
          std::find(std::begin(kFormats), std::end(kFormats), format.name) - std::begin(kFormats));
    } else if (is_enum(function) && graph_.arguments(id).size() == 1) {
      found = static_cast<std::size_t>(graph_.count(graph_.arguments(id)[0], "the memory format"));
    } else if (function.is("builtins", "getattr") && graph_.arguments(id).size() == 2 &&
               is_enum(graph_.global(graph_.arguments(id)[0]))) {
      const std::string_view name = graph_.text(graph_.arguments(id)[1], "the memory format");
      found = static_cast<std::size_t>(std::find(std::begin(kNames), std::end(kNames), name) -
                                       std::begin(kNames));
    }
    if (found >= std::size(kNames))
      throw_corrupt(str_format(
          "the memory format of the tensor is {} (expected: a member of _MEM_FORMAT_ENCODING)",
          graph_.describe(id)));
    return static_cast<TensorProperties::MemoryFormat>(found);
  }

  /// {key: {} or {'nd_reformulated_orig_global_shape': shape}}; keys that the checkpoint does not
  /// have are of no interest.
  void read_mcore_data(Id id) {
    if (graph_.is_none(id)) return;
    metadata_.has_mcore_data = true;
    const auto items = graph_.dict(id, "mcore_data");
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string_view key = graph_.text(items[i], "a key of mcore_data");
      const auto entry = entry_of_key_.find(key);
      if (entry == entry_of_key_.end()) {
        for_key(key, [] {
          throw_corrupt(
              "mcore_data has the original shape of a tensor that is not stored; is a letter of "
              "its key damaged?");
        });
      }
      if (!entries_[entry->second].is_tensor) continue;
      TensorStorageMetadata& tensor = metadata_.tensors[entries_[entry->second].position];
      for_key(key, [&] {
        const Id shape = graph_.find(graph_.dict(items[i + 1], "the entry of mcore_data"),
                                     "nd_reformulated_orig_global_shape");
        if (shape == MetadataGraph::kAbsent) return;
        if (tensor.flattened_shape) throw_corrupt("mcore_data names the key twice");
        graph_.shape(shape, "nd_reformulated_orig_global_shape", tensor.flattened_shape.emplace());
        check_bytes(*tensor.flattened_shape, tensor.properties.dtype, "a tensor of original shape");
        reformulated_cell_shape(tensor);
      });
    }
  }

  /// {MetadataIndex(key, offset, index): _StorageInfo(relative_path, offset, length)}
  void read_records(std::span<const Id> items) {
    std::vector<ChunkMatcher> matchers;
    matchers.reserve(metadata_.tensors.size());
    for (TensorStorageMetadata& tensor : metadata_.tensors) matchers.emplace_back(tensor);
    std::vector<bool> placed(metadata_.objects.size(), false);

    Shape offsets;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (!graph_.is_object_of(items[i], index_class_)) {
        throw_corrupt(str_format("a key of storage_data is {} (expected: MetadataIndex)",
                                 graph_.describe(items[i])));
      }
      const auto index = graph_.fields(items[i], index_class_);
      const Id fqn = index[0];
      const Id offset = index[1];
      const Id hint = index[2];
      const std::string_view key = graph_.text(fqn, "the fqn of a storage record");
      for_key(key, [&] {
        const StorageInfo place = read_place(items[i + 1]);
        const Entry* const entry = entry_of_record(fqn, key);
        if (entry == nullptr)
          throw_corrupt("a storage record is for a key that state_dict_metadata does not have");
        const std::uint32_t position = entry->position;
        if (entry->is_tensor) {
          if (graph_.is_none(offset)) throw_corrupt("a storage record of the tensor has no offset");
          graph_.shape(offset, "the offset of a storage record", offsets);
          matchers[position].add(offsets, graph_.integer(hint), place);
        } else {
          if (!graph_.is_none(offset))
            throw_corrupt("a storage record of the object has an offset, as only tensors have");
          if (placed[position]) throw_corrupt("two storage records name the object");
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
        if (!placed[i]) throw_corrupt("no storage record says where the object is");
      });
    }
  }

  /// Records mostly come with all chunks of a key one after the other, or rank by rank with the
  /// keys in one order: then no table has to be asked.
  const Entry* entry_of_record(Id fqn, std::string_view key) {
    if (fqn == last_fqn_) return &entries_[last_entry_];
    const std::uint32_t next = last_entry_ + 1 < entries_.size() ? last_entry_ + 1 : 0;
    if (next < entries_.size() && entries_[next].key == key) {
      last_entry_ = next;
    } else {
      const auto entry = entry_of_key_.find(key);
      if (entry == entry_of_key_.end()) return nullptr;
      last_entry_ = entry->second;
    }
    last_fqn_ = fqn;
    return &entries_[last_entry_];
  }

  StorageInfo read_place(Id id) {
    if (!graph_.is_object_of(id, place_class_)) {
      if (graph_.class_of(id))
        throw_unsupported(str_format(
            "a storage record is {}, of a storage writer that this version does not know",
            graph_.describe(id)));
      throw_corrupt(
          str_format("a storage record is {} (expected: _StorageInfo)", graph_.describe(id)));
    }
    const auto [path, offset_id, length_id, crc, transforms, common_crc] =
        graph_.fields(id, place_class_);
    const StorageCodec codec = read_codec(transforms);
    const std::uint32_t file = read_file(path);
    const std::int64_t offset = graph_.count(offset_id, "the file offset of a storage record");
    const std::int64_t length = graph_.count(length_id, "the length of a storage record");
    if (!checked_add(offset, length))
      throw_corrupt("the offset and length of a storage record do not fit 63 bits together");
    if (common_crc != MetadataGraph::kAbsent)
      metadata_.common_crc = read_crc(common_crc, dcp::kCommonCrc);
    return {file, static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length), codec,
            crc == MetadataGraph::kAbsent ? 0 : read_crc(crc, dcp::kRecordCrc)};
  }

  std::uint32_t read_crc(Id id, std::string_view what) const {
    const std::int64_t crc = graph_.count(id, what);
    if (crc > UINT32_MAX)
      throw_corrupt(str_format("{} is {}, which has more than 32 bits", what, crc));
    return static_cast<std::uint32_t>(crc);
  }

  StorageCodec read_codec(Id id) const {
    if (graph_.is_none(id)) return StorageCodec::kPlain;
    const auto transforms = graph_.list_or_tuple(id, "transform_descriptors");
    if (transforms.empty()) return StorageCodec::kPlain;
    const auto is_zstd = [&](Id transform) {
      return graph_.is_text(transform) && graph_.nodes().text(transform) == dcp::kZstdTransform;
    };
    if (transforms.size() == 1 && is_zstd(transforms[0])) return StorageCodec::kZstd;
    const auto unknown = std::find_if_not(transforms.begin(), transforms.end(), is_zstd);
    const Id named = unknown == transforms.end() ? transforms[0] : *unknown;
    throw_unsupported(str_format(
        "the stored bytes were transformed {}by {}, which cannot be undone here; save again "
        "without transforms, or with {} alone",
        unknown == transforms.end() ? "more than once " : "",
        graph_.is_text(named) ? quote(graph_.text(named, "a transform")) : graph_.describe(named),
        quote(dcp::kZstdTransform)));
  }

  /// Mostly all records of a file refer to one str, and come one after the other or in turns with
  /// those of the other files.
  std::uint32_t read_file(Id id) {
    for (const std::uint32_t likely : {last_file_, last_file_ + 1, 0U}) {
      if (likely < path_of_file_.size() && path_of_file_[likely] == id) return last_file_ = likely;
    }
    std::string name = graph_.path(id, "the relative_path of a storage record");
    name_components(
        name);  // refuses names that are absolute, leave the checkpoint or are no names at all
    if (name.find('\\') != std::string::npos || !is_utf8(name)) {
      throw_corrupt(
          str_format("the file name {} of a storage record has a backslash or is not UTF-8, which "
                     "systems understand differently",
                     quote(name)));
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

  /// {key: path in a nested dict}. Nothing depends on it, so that entries of another form are
  /// skipped. DCP's keys are the elements of their path with dots between them: a path that is
  /// longer is none, and must not be copied (one str may be referred to again and again).
  template <typename IsWanted>
  void read_paths(Id id, std::vector<std::pair<std::string, KeyPath>>& paths, IsWanted is_wanted) {
    if (id == MetadataGraph::kAbsent || graph_.kind(id) != Kind::kDict) return;
    const auto items = graph_.dict(id, "a dict of paths");
    std::unordered_set<std::string_view> seen;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (!graph_.is_text(items[i])) continue;
      const std::string_view key = graph_.text(items[i], "a key of a path");
      if (!seen.insert(key).second) continue;
      auto path = read_path(
          key, items[i + 1]);  // what is no path could not lead anywhere, whatever the key
      if (path && is_wanted(key)) paths.emplace_back(std::string(key), std::move(*path));
    }
  }

  std::optional<KeyPath> read_path(std::string_view key, Id id) const {
    if (graph_.kind(id) != Kind::kTuple && graph_.kind(id) != Kind::kList) return std::nullopt;
    KeyPath path;
    std::size_t length = 0;
    for (const Id step : graph_.nodes().children(id)) {
      if (graph_.is_text(step)) {
        const std::string_view name = graph_.nodes().text(step);
        if (name.size() > key.size() - length) return std::nullopt;
        length += name.size();
        path.emplace_back(std::in_place_type<std::string>, name);
      } else if (graph_.kind(step) == Kind::kInt) {
        path.emplace_back(std::in_place_type<std::int64_t>, graph_.nodes().integer(step));
      } else {
        return std::nullopt;
      }
      if (path.size() > key.size()) return std::nullopt;
    }
    return path;
  }

  void read_storage_meta(Id id) {
    if (!graph_.class_of(id).is(dcp::kMetadataModule, "StorageMeta")) return;
    const auto fields = graph_.attributes(id);
    StorageMeta& meta = metadata_.storage_meta.emplace();
    // Storage back ends have path classes of their own; those are skipped.
    if (const Id place = graph_.find(fields, "checkpoint_id"); graph_.is_path(place))
      meta.checkpoint_id = graph_.path(place, "checkpoint_id");
    if (const Id save = graph_.find(fields, "save_id"); graph_.is_text(save))
      meta.save_id = std::string(graph_.text(save, "save_id"));
  }

  /// Of Megatron's plans only what this library has attached to each; nothing else depends on them,
  /// so that others are skipped.
  void read_cached_plans(Id id) {
    if (id == MetadataGraph::kAbsent || graph_.kind(id) != Kind::kList) return;
    std::vector<CachedPlan> plans;
    std::uint64_t bytes = 0;
    for (const Id plan : graph_.nodes().children(id)) {
      if (!graph_.class_of(plan)) return;
      const Id kept = graph_.find(graph_.attributes(plan), kCachedPlan);
      if (kept == MetadataGraph::kAbsent || graph_.kind(kept) != Kind::kBytes) return;
      bytes += graph_.nodes().bytes(kept).size();
      if (bytes > pickle_size_) return;  // the same bytes over and over
      const ByteView content = graph_.nodes().bytes(kept);
      plans.push_back({Bytes(content.begin(), content.end())});
    }
    metadata_.cached_plans = std::move(plans);
  }

  MetadataGraph graph_;
  std::uint64_t pickle_size_;
  RowClass<2> chunk_class_{dcp::kChunkRow};
  RowClass<3> index_class_{dcp::kIndexRow};
  RowClass<6> place_class_{dcp::kPlaceRow};
  Metadata metadata_;
  std::vector<Entry> entries_;  // of state_dict_metadata, in its order
  std::unordered_map<std::string_view, std::uint32_t> entry_of_key_;
  Id last_fqn_ = MetadataGraph::kAbsent;
  std::uint32_t last_entry_ = 0;
  std::map<std::string, std::uint32_t> files_;
  std::vector<Id> path_of_file_;  // the node that named it last
  std::uint32_t last_file_ = 0;
  std::uint64_t box_axes_ = 0;
};

}  // namespace

Metadata read_dcp_metadata(ByteView pickle, const std::string& file_name) {
  // Nodes read what is unusual, and tell what is wrong.
  if (std::optional<Metadata> metadata = read_metadata_rows(pickle)) return std::move(*metadata);
  return read_metadata_nodes(pickle, file_name);
}

std::optional<Metadata> read_metadata_rows(ByteView pickle) {
  try {
    const pickle::Graph graph = pickle::read_rows(pickle, "", dcp::kMetadataRows);
    return MetadataReader(graph, pickle.size()).read();
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

Metadata read_metadata_nodes(ByteView pickle, const std::string& file_name) {
  return with_context({.file = file_name}, [&] {
    const pickle::Graph graph = pickle::read_graph(pickle, file_name);
    return MetadataReader(graph, pickle.size()).read();
  });
}

}  // namespace dckpt
