#include "strategies/formats/dcp/metadata_writer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "strategies/formats/dcp/metadata_pickle.h"
#include "strategies/formats/dcp/metadata_seal.h"

namespace dckpt {
namespace {

using dcp::MetadataPickle;

class MetadataWriter {
  static constexpr std::size_t kBytesPerChunk = 120;  // including its storage record, for two axes

 public:
  MetadataWriter(const Metadata& metadata, std::uint32_t common_crc)
      : metadata_(metadata), common_crc_(common_crc) {}

  Bytes write() {
    std::size_t chunks = 0;
    for (const TensorStorageMetadata& tensor : metadata_.tensors) chunks += tensor.chunks.size();
    out_.reserve(chunks * kBytesPerChunk);
    out_.object(dcp::kMetadataModule, "Metadata");
    out_.attributes([&] {
      out_.attribute("state_dict_metadata", [&] { state_dict_metadata(); });
      out_.attribute("planner_data",
                     [&] { metadata_.paths.empty() ? out_.none() : paths(metadata_.paths); });
      out_.attribute("storage_data", [&] { storage_data(); });
      out_.attribute("storage_meta", [&] { storage_meta(); });
      if (metadata_.version) out_.attribute("version", [&] { out_.text(*metadata_.version); });
      if (metadata_.has_mcore_data) out_.attribute("mcore_data", [&] { mcore_data(); });
      if (!metadata_.common_paths.empty())
        out_.attribute(dcp::kCommonPaths, [&] { paths(metadata_.common_paths); });
    });
    return out_.finish();
  }

 private:
  using Slot = MetadataPickle::Slot;
  using Text = MetadataPickle::Text;
  using Global = MetadataPickle::Global;

  void state_dict_metadata() {
    offsets_.resize(metadata_.tensors.size());
    auto entry = metadata_.objects.begin();
    const auto objects_before = [&](std::uint32_t order) {
      for (; entry != metadata_.objects.end() && entry->order < order; ++entry) {
        out_.text(entry->key);
        out_.object(dcp::kMetadataModule, "BytesStorageMetadata");
      }
    };
    out_.dict([&] {
      for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
        const TensorStorageMetadata& tensor = metadata_.tensors[i];
        objects_before(tensor.order);
        out_.text(tensor.key);
        out_.object(dcp::kMetadataModule, "TensorStorageMetadata");
        out_.attributes([&] {
          out_.attribute("properties", [&] { out_.properties(tensor.properties); });
          out_.attribute("size", [&] { out_.repeated_torch_size(tensor.size); });
          out_.attribute("chunks", [&] { offsets_[i] = chunks(tensor.chunks); });
        });
      }
      for (; entry != metadata_.objects.end(); ++entry) {
        out_.text(entry->key);
        out_.object(dcp::kMetadataModule, "BytesStorageMetadata");
      }
    });
  }

  /// Writes chunks. Returns the places of their offsets in the memo.
  std::vector<Slot> chunks(const BoxList& boxes) {
    std::vector<Slot> slots;
    slots.reserve(boxes.size());
    out_.list([&] {
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        out_.object(out_.chunk_class);
        out_.attributes([&] {
          out_.attribute(out_.offsets_name,
                         [&] { slots.push_back(out_.torch_size(boxes.offsets(i))); });
          out_.attribute(out_.sizes_name, [&] { out_.repeated_torch_size(boxes.sizes(i)); });
        });
      }
    });
    return slots;
  }

  /// Writes {key: path}.
  void paths(const std::vector<std::pair<std::string, KeyPath>>& entries) {
    out_.dict([&] {
      for (const auto& [key, path] : entries) {
        out_.text(key);
        out_.mark();
        for (const PathElement& step : path) {
          if (const auto* name = std::get_if<std::string>(&step)) {
            out_.text(*name);
          } else {
            out_.integer(std::get<std::int64_t>(step));
          }
        }
        out_.tuple();
      }
    });
  }

  void storage_data() {
    for (const std::string& file : metadata_.files) file_names_.push_back({file});
    out_.dict([&] {
      for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
        const TensorStorageMetadata& tensor = metadata_.tensors[i];
        if (tensor.places.size() != tensor.chunks.size()) {
          throw_error(ErrorCode::kInvalidArgument, {.key = tensor.key},
                      "cannot write metadata with {} and {}",
                      counted(tensor.chunks.size(), "chunk"),
                      counted(tensor.places.size(), "place"));
        }
        Text key{tensor.key};
        for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
          out_.object(out_.index_class);
          out_.attributes([&] {
            out_.attribute(out_.fqn_name, [&] { out_.text(key); });
            out_.attribute(out_.index_name,
                           [&] { out_.integer(static_cast<std::int64_t>(chunk)); });
            out_.attribute(out_.offset_name, [&] { out_.get(offsets_[i][chunk]); });
          });
          storage_info(tensor.key, tensor.places[chunk]);
        }
      }
      for (const BytesStorageMetadata& entry : metadata_.objects) {
        out_.object(out_.index_class);
        out_.attributes([&] {
          out_.attribute(out_.fqn_name, [&] { out_.text(entry.key); });
          out_.attribute(out_.index_name, [&] { out_.none(); });
        });
        storage_info(entry.key, entry.place);
      }
    });
  }

  void storage_info(const std::string& key, const StorageInfo& place) {
    if (place.file >= metadata_.files.size()) {
      throw_error(ErrorCode::kInvalidArgument, {.key = key},
                  "cannot write metadata with a place in file {} of {}", place.file,
                  metadata_.files.size());
    }
    out_.object(place_class_);
    out_.attributes([&] {
      out_.attribute(path_name_, [&] { out_.text(file_names_[place.file]); });
      out_.attribute(out_.offset_name,
                     [&] { out_.integer(static_cast<std::int64_t>(place.offset)); });
      out_.attribute(length_name_, [&] { out_.integer(static_cast<std::int64_t>(place.length)); });
      if (place.crc != 0) out_.attribute(crc_name_, [&] { out_.integer(place.crc); });
      if (place.codec == StorageCodec::kZstd) {
        out_.attribute(transforms_name_, [&] { out_.list([&] { out_.text(zstd_name_); }); });
      }
      if (const std::uint32_t crc = std::exchange(common_crc_, 0); crc != 0)
        out_.attribute(dcp::kCommonCrc, [&] { out_.integer(crc); });
    });
  }

  void storage_meta() {
    if (!metadata_.storage_meta) return out_.none();
    const auto optional_text = [&](const std::optional<std::string>& text) {
      text ? out_.text(*text) : out_.none();
    };
    out_.object(dcp::kMetadataModule, "StorageMeta");
    out_.attributes([&] {
      out_.attribute("checkpoint_id",
                     [&] { optional_text(metadata_.storage_meta->checkpoint_id); });
      out_.attribute("save_id", [&] { optional_text(metadata_.storage_meta->save_id); });
      out_.attribute("load_id", [&] { out_.none(); });
      out_.attribute("modules", [&] {
        const auto& planner = metadata_.storage_meta->load_planner;
        if (!planner) return out_.empty_list();
        out_.list([&] { out_.text(std::string(dcp::kLoadPlannerModule) + *planner); });
      });
    });
  }

  void mcore_data() {
    out_.dict([&] {
      for (const TensorStorageMetadata& tensor : metadata_.tensors) {
        out_.text(tensor.key);
        out_.original_shape(tensor.flattened_shape);
      }
    });
  }

  const Metadata& metadata_;
  std::uint32_t common_crc_;  // 0 once the first record has it
  MetadataPickle out_;
  Global place_class_{dcp::kFilesystemModule, "_StorageInfo"};
  Text path_name_{"relative_path"}, length_name_{"length"};
  Text transforms_name_{"transform_descriptors"}, zstd_name_{dcp::kZstdTransform};
  Text crc_name_{dcp::kRecordCrc};
  std::vector<Text> file_names_;
  std::vector<std::vector<Slot>> offsets_;  // offsets of chunks in the memo, per tensor
};

}  // namespace

Bytes write_dcp_metadata(const Metadata& metadata, std::uint32_t common_crc) {
  const auto nameless = [](const auto& entry) { return entry.key.empty(); };
  if (std::ranges::any_of(metadata.tensors, nameless) ||
      std::ranges::any_of(metadata.objects, nameless))
    throw_error(ErrorCode::kUnsupported,
                "a tensor or object has an empty key, which PyTorch DCP cannot read");
  return sealed(MetadataWriter(metadata, common_crc).write());
}

}  // namespace dckpt
