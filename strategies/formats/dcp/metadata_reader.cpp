#include "strategies/formats/dcp/metadata_reader.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/planning/reformulation.h"
#include "strategies/formats/dcp/metadata_graph.h"
#include "strategies/formats/dcp/metadata_seal.h"
#include "strategies/formats/dcp/storage_records.h"
#include "strategies/formats/dcp/tensor_properties.h"
#include "strategies/formats/pickle/graph.h"

namespace dckpt {
namespace {

using dcp::for_key;
using dcp::GlobalName;
using dcp::MetadataGraph;
using dcp::RowClass;
using dcp::StoredKeys;
using Id = MetadataGraph::Id;
using Kind = MetadataGraph::Kind;

/// The limit of axes of all boxes together, per node of the pickle. A pickle may refer to one box
/// again and again in two bytes each. Real pickles, where each chunk takes ten nodes or more, stay
/// far below.
constexpr std::uint64_t kMaxBoxAxesPerNode = 8;

/// Refuses shapes whose strides or bytes overflow, also if an extent of 0 would hide it.
void check_bytes(ShapeView shape, DType dtype, std::string_view what) {
  std::optional<std::int64_t> bytes = static_cast<std::int64_t>(item_size(dtype));
  for (const std::int64_t extent : shape) {
    bytes = checked_mul(*bytes, std::max<std::int64_t>(extent, 1));
    if (!bytes)
      throw_error(ErrorCode::kCorrupt, "{} {} has more bytes than a file can have", what,
                  to_string(shape));
  }
}

class MetadataReader {
 public:
  explicit MetadataReader(const pickle::Graph& nodes) : graph_(nodes) {}

  Metadata read() {
    refuse_persistent_ids();
    const Id root = graph_.nodes().root();
    const GlobalName type = graph_.class_of(root);
    if (!type.is(dcp::kMetadataModule, "Metadata") &&
        !type.is(dcp::kMegatronModule, "MCoreMetadata")) {
      throw_error(ErrorCode::kCorrupt, "the pickle holds {} (expected: DCP's Metadata)",
                  graph_.describe(root));
    }
    const auto fields = graph_.attributes(root);
    read_entries(graph_.dict(graph_.find(fields, "state_dict_metadata"), "state_dict_metadata"));
    read_mcore_data(graph_.find(fields, "mcore_data"));
    dcp::read_storage_records(
        graph_, graph_.dict(graph_.find(fields, "storage_data"), "storage_data"), keys_, metadata_);
    read_paths(graph_.find(fields, "planner_data"), metadata_.paths, [&](std::string_view key) {
      if (keys_.find(key) != nullptr) return true;
      metadata_.stray_paths.emplace_back(key);
      return false;
    });
    read_paths(graph_.find(fields, dcp::kCommonPaths), metadata_.common_paths,
               [&](std::string_view key) {
                 const StoredKeys::Entry* const found = keys_.find(key);
                 return found == nullptr || !found->is_tensor;
               });
    read_storage_meta(graph_.find(fields, "storage_meta"));
    if (const Id version = graph_.find(fields, "version"); graph_.is_text(version))
      metadata_.version = std::string(graph_.text(version, "version"));
    return std::move(metadata_);
  }

 private:
  /// Refuses persistent ids, which stand for storages in files of torch.save. An unpickler of
  /// metadata fails on them wherever they are.
  void refuse_persistent_ids() const {
    if (!graph_.nodes().persistent().empty())
      throw_error(ErrorCode::kCorrupt,
                  "the pickle has a persistent id, which nothing here can resolve");
  }

  void read_entries(std::span<const Id> items) {
    keys_.reserve(items.size() / 2);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string_view key = graph_.text(items[i], "a key of state_dict_metadata");
      for_key(key, [&] {
        if (key.empty() || !is_utf8(key))
          throw_error(ErrorCode::kCorrupt, "a key of state_dict_metadata is empty or not UTF-8");
        const GlobalName type = graph_.class_of(items[i + 1]);
        const bool is_tensor = type.is(dcp::kMetadataModule, "TensorStorageMetadata");
        if (!is_tensor && !type.is(dcp::kMetadataModule, "BytesStorageMetadata")) {
          throw_error(ErrorCode::kCorrupt,
                      "state_dict_metadata has {} (expected: the metadata of a tensor or of bytes)",
                      graph_.describe(items[i + 1]));
        }
        const std::size_t position =
            is_tensor ? metadata_.tensors.size() : metadata_.objects.size();
        const auto order = static_cast<std::uint32_t>(keys_.size());
        keys_.add({key, is_tensor, static_cast<std::uint32_t>(position)});
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
    tensor.properties = dcp::read_properties(graph_, graph_.find(fields, "properties"));
    graph_.shape(graph_.find(fields, "size"), "the size of the tensor", tensor.size);
    check_bytes(tensor.size, tensor.properties.dtype, "a tensor of size");

    const auto chunks = graph_.list_or_tuple(graph_.find(fields, "chunks"), "the list of chunks");
    box_axes_ += chunks.size() * std::max<std::size_t>(tensor.size.size(), 1);
    if (box_axes_ / kMaxBoxAxesPerNode > graph_.nodes().size())
      throw_error(ErrorCode::kCorrupt, "the list of chunks repeats the same chunks over and over");
    tensor.chunks = BoxList(tensor.size.size());
    tensor.chunks.reserve(chunks.size());
    Box box;
    for (const Id chunk : chunks) {
      if (!graph_.is_object_of(chunk, chunk_class_)) {
        throw_error(ErrorCode::kCorrupt,
                    "the list of chunks has {} (expected: ChunkStorageMetadata)",
                    graph_.describe(chunk));
      }
      const auto [offsets, sizes] = graph_.fields(chunk, chunk_class_);
      graph_.shape(offsets, "an offset of a chunk", box.offsets);
      graph_.shape(sizes, "a size of a chunk", box.sizes);
      if (!fits(box, tensor.size)) {
        throw_error(ErrorCode::kCorrupt,
                    "the chunk with offsets {} and sizes {} is not inside the tensor of size {}",
                    to_string(box.offsets), to_string(box.sizes), to_string(tensor.size));
      }
      tensor.chunks.push_back(box);
    }
  }

  /// Reads {key: {} or {'nd_reformulated_orig_global_shape': shape}}; skips keys that the
  /// checkpoint does not have.
  void read_mcore_data(Id id) {
    if (graph_.is_none(id)) return;
    metadata_.has_mcore_data = true;
    const auto items = graph_.dict(id, "mcore_data");
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string_view key = graph_.text(items[i], "a key of mcore_data");
      const StoredKeys::Entry* const entry = keys_.find(key);
      if (entry == nullptr) {
        for_key(key, [] {
          throw_error(
              ErrorCode::kCorrupt,
              "mcore_data has the original shape of a tensor that is not stored; is a letter of "
              "its key damaged?");
        });
      }
      if (!entry->is_tensor) continue;
      TensorStorageMetadata& tensor = metadata_.tensors[entry->position];
      for_key(key, [&] {
        const Id shape = graph_.find(graph_.dict(items[i + 1], "the entry of mcore_data"),
                                     "nd_reformulated_orig_global_shape");
        if (shape == MetadataGraph::kAbsent) return;
        if (tensor.flattened_shape)
          throw_error(ErrorCode::kCorrupt, "mcore_data names the key twice");
        graph_.shape(shape, "nd_reformulated_orig_global_shape", tensor.flattened_shape.emplace());
        check_bytes(*tensor.flattened_shape, tensor.properties.dtype, "a tensor of original shape");
        reformulated_cell_shape(tensor);
      });
    }
  }

  /// Reads {key: path in a nested dict}. Nothing depends on the paths, so entries of another form
  /// are skipped. DCP's keys are the elements of their path with dots between them: a longer path
  /// is invalid, and must not be copied (one str may be referred to again and again).
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
          key, items[i + 1]);  // a value that is not a path leads nowhere, whatever the key
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
    // Path classes of storage back ends are skipped.
    if (const Id place = graph_.find(fields, "checkpoint_id"); graph_.is_path(place))
      meta.checkpoint_id = graph_.path(place, "checkpoint_id");
    if (const Id save = graph_.find(fields, "save_id"); graph_.is_text(save))
      meta.save_id = std::string(graph_.text(save, "save_id"));
    const Id modules = graph_.find(fields, "modules");
    if (modules == MetadataGraph::kAbsent || graph_.kind(modules) != Kind::kList) return;
    for (const Id module : graph_.nodes().children(modules)) {
      if (!graph_.is_text(module)) continue;
      const std::string_view name = graph_.text(module, "modules");
      if (name.starts_with(dcp::kLoadPlannerModule))
        meta.load_planner = std::string(name.substr(dcp::kLoadPlannerModule.size()));
    }
  }

  MetadataGraph graph_;
  RowClass<2> chunk_class_{dcp::kChunkRow};
  Metadata metadata_;
  StoredKeys keys_;
  std::uint64_t box_axes_ = 0;
};

}  // namespace

Metadata read_dcp_metadata(ByteView pickle, const std::string& file_name) {
  // The reader of nodes handles unusual pickles and reports errors.
  std::optional<Metadata> metadata = read_metadata_rows(pickle);
  if (!metadata) metadata = read_metadata_nodes(pickle, file_name);
  check_seal(pickle, file_name);  // last: the readers say more about what they find
  return std::move(*metadata);
}

std::optional<Metadata> read_metadata_rows(ByteView pickle) {
  try {
    const pickle::Graph graph = pickle::read_rows(pickle, "", dcp::kMetadataRows);
    return MetadataReader(graph).read();
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

Metadata read_metadata_nodes(ByteView pickle, const std::string& file_name) {
  return with_context({.file = file_name}, [&] {
    const pickle::Graph graph = pickle::read_graph(pickle, file_name);
    return MetadataReader(graph).read();
  });
}

}  // namespace dckpt
