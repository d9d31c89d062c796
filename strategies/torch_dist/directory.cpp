#include "strategies/torch_dist/directory.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "mapping/base/error.h"
#include "mapping/planning/reformulation.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/pickle/read_pickle_file.h"
#include "strategies/torch_dist/fsdp_dtensor.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{8} << 30;

/// Recovers lost shapes: "optimizer.state.exp_avg.decoder.weight" gets the shape of the model
/// tensor "decoder.weight", if its stored size can be the reformulation.
void recover_flattened_shapes(Metadata& metadata) {
  constexpr std::string_view kOptimizer = "optimizer";
  std::unordered_map<std::string_view, const TensorStorageMetadata*> by_key;
  bool recovered = false;
  std::vector<std::pair<TensorStorageMetadata*, Shape>> found;
  for (TensorStorageMetadata& tensor : metadata.tensors) {
    const std::string_view key = tensor.key;
    const std::size_t optimizer = key.find(kOptimizer);
    if (tensor.flattened_shape || optimizer == std::string_view::npos) continue;
    if (by_key.empty()) {  // only now: most checkpoints of models have no optimizer
      by_key.reserve(metadata.tensors.size());
      for (const TensorStorageMetadata& model : metadata.tensors) by_key.emplace(model.key, &model);
    }
    for (std::size_t dot = key.find('.', optimizer + kOptimizer.size());
         dot != std::string_view::npos; dot = key.find('.', dot + 1)) {
      const auto model = by_key.find(key.substr(dot + 1));
      if (model == by_key.end() || model->second->flattened_shape) continue;
      if (may_be_reformulated(tensor.size, model->second->size))
        found.emplace_back(&tensor, model->second->size);
      break;
    }
  }
  for (auto& [tensor, shape] : found) {
    tensor->flattened_shape = std::move(shape);
    recovered = true;
  }
  metadata.has_mcore_data |= recovered;
}

class DirectoryReader {
 public:
  explicit DirectoryReader(const Storage& storage) : storage_(storage) {}

  TorchDistDirectory read(const TorchDistReadOptions& options) {
    read_config();
    read_metadata();
    Conventions& conventions = found_.info.conventions;
    if (options.recover_flattened_shapes && !found_.metadata.has_mcore_data &&
        !conventions.keys_are_paths)
      recover_flattened_shapes(found_.metadata);
    find_common();
    conventions.megatron_fsdp = conventions.keys_are_paths && is_fsdp_dtensor(found_.metadata);
    found_.info.producer = guess_producer();
    return std::move(found_);
  }

 private:
  void read_config() {
    const auto entry = storage_.stat(kConfigFile);
    if (!entry) {
      found_.info.format = "dcp";
      found_.info.conventions = kDcpConventions;
      if (storage_.stat(kCommonFile)) throw_without_config();
      return;
    }
    const auto file = storage_.open(kConfigFile);
    const CheckpointingConfig config =
        read_checkpointing_config(read_file(*file, kMaxConfigBytes), file->name());
    if (config.sharded_backend != "torch_dist" || config.sharded_backend_version != 1) {
      throw_error(ErrorCode::kUnsupported, {.file = file->name()},
                  "the checkpoint was written by backend {} version {}; expected 'torch_dist' "
                  "version 1",
                  quote(config.sharded_backend), config.sharded_backend_version);
    }
    check_common_backend(config, file->name());
    found_.info.index_files.emplace_back(kConfigFile);
    found_.info.format = "torch_dist";
    found_.info.conventions = kTorchDistConventions;
    found_.info.version = config.sharded_backend_version;
    expects_common_file_ = config.common_backend.has_value();
  }

  /// Refuses a directory with common.pt but without metadata.json: plain DCP directories have no
  /// common.pt, so it is Megatron's, which has metadata.json.
  [[noreturn]] void throw_without_config() const {
    throw_error(ErrorCode::kIncomplete, {.file = storage_.display_path(kConfigFile)},
                "metadata.json is missing, but there is {}: a torch_dist checkpoint whose save "
                "was interrupted, or a copy that is not complete. Copy it again; if only this "
                "file is lost, create it with the content {{\"sharded_backend\": "
                "\"torch_dist\", \"sharded_backend_version\": 1}}",
                kCommonFile);
  }

  void read_metadata() {
    if (!storage_.stat(kMetadataFile)) {
      const bool interrupted = storage_.stat(".metadata.bck").has_value();
      throw_error(
          ErrorCode::kIncomplete, {.file = storage_.display_path(kMetadataFile)},
          std::string(".metadata is missing: ") +
              (interrupted ? "removing tensors from this checkpoint was interrupted; rename "
                             ".metadata.bck to .metadata to get it back"
                           : "this is not a finished checkpoint (an interrupted save leaves data "
                             "files without it)"));
    }
    const auto file = storage_.open(kMetadataFile);
    const Bytes pickle = pickle::read_pickle_file(*file, kMaxMetadataBytes);
    found_.info.index_files.emplace_back(kMetadataFile);
    found_.metadata = with_context({.file = file->name()},
                                   [&] { return read_dcp_metadata(pickle, file->name()); });
  }

  void find_common() {
    const auto entry = storage_.stat(kCommonFile);
    if (!found_.info.conventions.keys_are_paths) {
      std::unordered_set<std::string_view> objects;
      for (const BytesStorageMetadata& object : found_.metadata.objects) objects.insert(object.key);
      std::erase_if(found_.metadata.common_paths,
                    [&](const auto& path) { return objects.contains(path.first); });
    }
    if (entry && !found_.info.conventions.keys_are_paths) {
      found_.info.common_file = kCommonFile;
      return;
    }
    if (auto taken = take_common_object(found_.metadata)) {
      found_.common_object = std::move(taken->object);
      found_.info.common_object = taken->position;
    }
    if (found_.common_object) {
      note_place(*found_.common_object);
      if (found_.info.conventions.keys_are_paths)
        std::ranges::for_each(take_common_values(found_.metadata),
                              [this](const auto& object) { note_place(object); });
    } else if (!found_.common_object && expects_common_file_) {
      throw_error(
          ErrorCode::kIncomplete, {.file = storage_.display_path(kCommonFile)},
          "Common file common.pt does not exist, and there is no common_state object in its place");
    }
  }

  void note_place(const BytesStorageMetadata& object) {
    if (object.place.codec == StorageCodec::kPlain)
      found_.info.common_places.push_back(object.place);
  }

  std::string guess_producer() const {
    if (found_.info.conventions.megatron_fsdp) return "Megatron-FSDP, fsdp_dtensor";
    if (found_.info.conventions.keys_are_paths) return "PyTorch DCP";
    if (!found_.info.common_file) return "Megatron-Core 0.19 or newer";
    if (found_.metadata.has_mcore_data) return "Megatron-Core 0.8 to 0.15";
    return "Megatron-Core up to 0.18";
  }

  const Storage& storage_;
  TorchDistDirectory found_;
  bool expects_common_file_ = false;
};

}  // namespace

TorchDistDirectory read_torch_dist_directory(const Storage& storage,
                                             const TorchDistReadOptions& options) {
  return DirectoryReader(storage).read(options);
}

}  // namespace dckpt
