#include "strategies/safetensors/safetensors_reader.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/planning/validate.h"
#include "strategies/formats/safetensors/dcp_sharding.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/safetensors/hub_cache.h"
#include "strategies/safetensors/model_files.h"

namespace dckpt {
namespace {

/// Joins the headers of all files into metadata.
class SafetensorsScan {
 public:
  explicit SafetensorsScan(const Storage& storage, const ModelFiles& model) : storage_(storage) {
    for (const auto& [key, file] : model.index.weight_map) file_of_.emplace(key, &file);
    for (const std::string& file : model.files) add(file);
    check_index(model);
    for (std::size_t tensor = 0; tensor < metadata.tensors.size(); ++tensor) {
      if (is_cut_[tensor]) check_parts(metadata.tensors[tensor]);
      has_parts |= metadata.tensors[tensor].places.size() > 1;
    }
  }

  Metadata metadata;
  std::vector<std::pair<std::string, std::string>> annotations;
  bool is_dcp = false;              ///< written by DCP
  bool has_parts = false;           ///< it has parts of tensors that are cut
  std::set<std::string> shapeless;  ///< keys of parts that do not state the shape of their tensor

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& message, const std::string& key,
                         const std::string& file) const {
    throw_error(code, {.key = key, .file = storage_.display_path(file)}, message);
  }

  void add(const std::string& name) {
    const auto file = storage_.open(name);
    SafetensorsLayout layout = read_safetensors_header(*file);
    const std::string* const sharding = layout.header.find_metadata(kDcpShardingInfo);
    const std::map<std::string, DcpPart> parts = sharding == nullptr
                                                     ? std::map<std::string, DcpPart>()
                                                     : parse_dcp_sharding(*sharding, file->name());
    is_dcp |= layout.header.find_metadata(kDcpVersion) != nullptr;
    for (const auto& entry : layout.header.metadata) {
      if (!is_reserved(entry.first) && annotation_names_.insert(entry.first).second)
        annotations.push_back(entry);
    }
    const auto number = static_cast<std::uint32_t>(metadata.files.size());
    metadata.files.push_back(name);
    StorageInfo place{.file = number, .offset = layout.data_begin};
    for (SafetensorsTensor& tensor : layout.header.tensors) {
      place.length = tensor.nbytes();
      check_listed(tensor.key, name);
      Box box = whole(tensor.shape);
      const DcpPart* cut = nullptr;
      if (sharding != nullptr) {
        const auto part = parts.find(tensor.key);
        if (part == parts.end())
          fail(ErrorCode::kCorrupt, "'DCP_SHARDING_INFO' does not say where the tensor belongs",
               tensor.key, name);
        cut = &part->second;
        box.offsets = cut->offsets;
        if (!is_valid(box) || (cut->global_shape && !fits(box, *cut->global_shape)))
          fail(ErrorCode::kCorrupt,
               str_format("'DCP_SHARDING_INFO' has the offsets {}{} for a tensor of shape {}",
                          to_string(box.offsets),
                          cut->global_shape ? " in " + to_string(*cut->global_shape) : "",
                          to_string(box.sizes)),
               tensor.key, name);
      }
      add_part(std::move(tensor), box, place, cut);
      place.offset += place.length;
    }
  }

  /// Adds a tensor, or a part of one: `cut` is null if it is whole.
  void add_part(SafetensorsTensor tensor, const Box& part, const StorageInfo& place,
                const DcpPart* cut) {
    const std::string& file = metadata.files[place.file];
    const auto [known, is_new] = position_.emplace(tensor.key, metadata.tensors.size());
    if (is_new) {
      metadata.tensors.push_back(
          {.key = std::move(tensor.key),
           .properties = {.dtype = tensor.dtype},
           .size = cut != nullptr && cut->global_shape ? *cut->global_shape : Shape(part.dims(), 0),
           .chunks = BoxList(part.dims())});
      is_cut_.push_back(cut != nullptr);
    }
    TensorStorageMetadata& joined = metadata.tensors[known->second];
    if (!is_new && (cut == nullptr || !is_cut_[known->second])) {
      fail(ErrorCode::kCorrupt,
           str_format("the tensor is in {}, too; if these are different models, name the file of "
                      "one",
                      quote(metadata.files[joined.places.front().file])),
           joined.key, file);
    }
    if (joined.properties.dtype != tensor.dtype || joined.size.size() != part.dims()) {
      fail(ErrorCode::kCorrupt,
           str_format("the part is one of {} axes of {}, but {} has one of {} axes of {}",
                      part.dims(), to_string(tensor.dtype),
                      quote(metadata.files[joined.places.front().file]), joined.size.size(),
                      to_string(joined.properties.dtype)),
           joined.key, file);
    }
    if (cut != nullptr && cut->global_shape && !shapeless.contains(joined.key) &&
        joined.size != *cut->global_shape)
      fail(ErrorCode::kCorrupt,
           str_format("the part is one of a tensor of shape {}, but that in {} is one of shape {}",
                      to_string(*cut->global_shape),
                      quote(metadata.files[joined.places.front().file]), to_string(joined.size)),
           joined.key, file);
    if (cut != nullptr && !cut->global_shape) shapeless.insert(joined.key);
    for (std::size_t axis = 0; axis < part.dims(); ++axis)
      joined.size[axis] = std::max(joined.size[axis], part.offsets[axis] + part.sizes[axis]);
    joined.chunks.push_back(part);
    joined.places.push_back(place);
  }

  /// Checks that the index, if there is one, has the key and means this file.
  void check_listed(const std::string& key, const std::string& file) const {
    if (file_of_.empty()) return;
    const auto listed = file_of_.find(key);
    if (listed == file_of_.end())
      fail(ErrorCode::kCorrupt,
           "the tensor is not in the index: index and files are of different models", key, file);
    if (*listed->second != file)
      fail(ErrorCode::kCorrupt,
           str_format("the tensor is here, but according to the index in {}",
                      quote(*listed->second)),
           key, file);
  }

  void check_index(const ModelFiles& model) const {
    for (const auto& [key, file] : model.index.weight_map) {
      if (!position_.contains(key))
        fail(ErrorCode::kCorrupt,
             str_format("the index {} says that the tensor is here, but it is not: index and files "
                        "are of different models",
                        quote(*model.index_file)),
             key, file);
    }
  }

  void check_parts(const TensorStorageMetadata& tensor) const {
    if (!checked_bytes(tensor))
      fail(ErrorCode::kCorrupt,
           str_format("the parts make up the impossible shape {}", to_string(tensor.size)),
           tensor.key, metadata.files[tensor.places.front().file]);
    const std::vector<CoverageProblem> problems = validate_coverage(tensor);
    if (problems.empty()) return;
    const bool missing = std::ranges::all_of(problems, [](const CoverageProblem& problem) {
      return problem.code == FindingCode::kElementsMissing;
    });
    fail(missing ? ErrorCode::kIncomplete : ErrorCode::kCorrupt,
         str_format("the parts of the tensor in {} do not make it up: {}{}",
                    tensor.places.size() == 1 ? "one file" : "several files",
                    problems.front().message,
                    missing ? "; a file is missing, or the folder should be named instead" : ""),
         tensor.key, metadata.files[tensor.places.front().file]);
  }

  static bool checked_bytes(const TensorStorageMetadata& tensor) {
    const auto elements = checked_numel(tensor.size);
    return elements && checked_mul<std::int64_t>(*elements, 16).has_value();
  }

  const Storage& storage_;
  std::unordered_map<std::string_view, const std::string*> file_of_;  // by key, from the index
  std::unordered_map<std::string, std::size_t> position_;             // of the tensor, by key
  std::vector<bool> is_cut_;                                          // same order as the tensors
  std::unordered_set<std::string> annotation_names_;
};

class SafetensorsReader final : public CheckpointReader {
 public:
  SafetensorsReader(std::shared_ptr<const Storage> storage, const std::optional<std::string>& file)
      : storage_(std::move(storage)) {
    const ModelFiles model = find_model_files(*storage_, file);
    SafetensorsScan scan(*storage_, model);
    metadata_ = std::move(scan.metadata);
    if (model.index_file) info_.index_files.push_back(*model.index_file);
    info_.conventions.model_folder = !file || model.index_file;
    if (!info_.conventions.model_folder) info_.single_file = file;
    info_.annotations = std::move(scan.annotations);
    // With an index, or with the shapes of the whole tensors, a missing file would be an error.
    if (!model.index_file && !scan.shapeless.empty()) {
      info_.findings.push_back(
          {.code = FindingCode::kFilesMayBeMissing,
           .message = str_format(
               "{} with parts of tensors: {}. Not all of them state the shapes of the whole "
               "tensors, so nothing tells whether the files of a rank are missing; compare the "
               "files with the ranks that saved",
               counted(metadata_.files.size(), "file"), quoted_list(metadata_.files)),
           .keys = {scan.shapeless.begin(), scan.shapeless.end()}});
    }
    if (scan.is_dcp)
      info_.producer = "PyTorch DCP";
    else if (info_.conventions.model_folder && storage_->stat("config.json"))
      info_.producer = "Hugging Face";
    info_.readers = scan.has_parts                     ? "PyTorch DCP"
                    : info_.producer == "Hugging Face" ? "transformers, safetensors"
                                                       : "safetensors";
    describe_adapter();
  }

  const CheckpointInfo& info() const noexcept override { return info_; }
  const Metadata& metadata() const noexcept override { return metadata_; }
  const Storage& storage() const noexcept override { return *storage_; }

  Value common_state() const override { return {}; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk, const ReadableFile&) const override {
    const TensorStorageMetadata& entry = metadata_.tensors.at(tensor);
    return {.offset = entry.places[chunk].offset,
            .dtype = entry.properties.dtype,
            .strides = row_major_strides(entry.chunks.sizes(chunk))};
  }

  Bytes object_bytes(std::size_t) const override { throw no_objects(); }
  Value decode_object(std::size_t, ByteView) const override { throw no_objects(); }
  bool check_object(std::size_t) const override { throw no_objects(); }
  bool check_chunk(std::size_t, std::size_t, const ReadableFile&) const override { return false; }

 private:
  /// Records whether this is an adapter of PEFT, or a model with one beside it.
  void describe_adapter() {
    if (!info_.conventions.model_folder) return;
    const bool is_adapter =
        std::ranges::find(metadata_.files, kAdapterFile) != metadata_.files.end();
    if (!is_adapter) info_.adapter_files = adapter_files(*storage_);
    if (!storage_->stat(kAdapterFile)) return;
    if (!is_adapter) {
      info_.producer += info_.producer.empty() ? "" : ", ";
      info_.producer += "with an adapter beside the model";
    } else if (storage_->stat(kAdapterConfigFile)) {
      info_.producer = "PEFT";
      info_.readers = "PEFT, safetensors";
    }
  }

  static CheckpointError no_objects() {
    return {ErrorCode::kInvalidArgument, "safetensors hold no objects"};
  }

  std::shared_ptr<const Storage> storage_;
  CheckpointInfo info_{.format = "safetensors", .producer = ""};
  Metadata metadata_;
};

}  // namespace

std::unique_ptr<CheckpointReader> open_safetensors(std::shared_ptr<const Storage> storage,
                                                   const std::optional<std::string>& file) {
  const auto named = file ? storage->stat(*file) : std::nullopt;
  if (!named || named->kind != FileInfo::Kind::kRegular)
    storage = with_hub_cache(std::move(storage));
  return std::make_unique<SafetensorsReader>(std::move(storage), file);
}

}  // namespace dckpt
