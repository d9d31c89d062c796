#include "strategies/legacy_torch/legacy_reader.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/legacy_torch/nested_state.h"
#include "strategies/legacy_torch/rank_grid.h"

namespace dckpt {
namespace {

constexpr std::string_view kSuffix = ".pt";

/// A file of the checkpoint, and the beginning of its tensors' names.
struct SourceFile {
  std::string name;
  std::string key_prefix;
  std::optional<RankFile> of_rank{};  ///< without its state yet
};

[[noreturn]] void fail(const Storage& storage, ErrorCode code, const std::string& message,
                       const std::string& file) {
  throw_error(code, {.file = storage.display_path(file)}, message);
}

std::string key_prefix(const RankFile& file, bool several) {
  return (several ? file.folder + "/" : "") + (file.is_main() ? "" : file.stem + ".");
}

std::vector<SourceFile> find_files(const Storage& storage) {
  std::vector<std::string> folders;
  for (const FileInfo& entry : storage.list("")) {
    if (!is_rank_folder(entry.name)) continue;
    if (entry.kind != FileInfo::Kind::kDirectory)
      fail(storage, ErrorCode::kCorrupt, "a rank's folder is not a directory", entry.name);
    folders.push_back(entry.name);
  }
  if (folders.empty()) fail(storage, ErrorCode::kIncomplete, "there is no mp_rank_XX folder", "");

  std::vector<SourceFile> files;
  for (const std::string& folder : folders) {
    const std::size_t before = files.size();
    for (const FileInfo& entry : storage.list(folder)) {
      if (!entry.name.ends_with(kSuffix)) continue;
      const RankFile file{.folder = folder,
                          .stem = entry.name.substr(0, entry.name.size() - kSuffix.size()),
                          .state = nullptr};
      files.push_back({file.name(), key_prefix(file, folders.size() > 1), file});
    }
    if (files.size() == before)
      fail(storage, ErrorCode::kIncomplete, "the rank's folder holds no .pt file", folder);
  }
  return files;
}

class LegacyReader final : public CheckpointReader {
 public:
  LegacyReader(std::shared_ptr<const Storage> storage, const std::vector<SourceFile>& files,
               std::string producer)
      : storage_(std::move(storage)),
        info_{.format = "torch",
              .producer = std::move(producer),
              .conventions = {.per_rank = std::ranges::any_of(files,
                                                              [](const SourceFile& file) {
                                                                return file.of_rank.has_value();
                                                              })}},
        checked_(files.size()) {
    if (!info_.conventions.per_rank) info_.single_file = files.front().name;
    info_.readers = info_.conventions.per_rank
                        ? "Megatron-LM under the same tensor and pipeline parallel sizes"
                        : "torch.load";
    std::set<std::string> keys;
    for (const SourceFile& file : files) add(file, keys);
    check_ranks(files);
  }

  LegacyReader(std::shared_ptr<const Storage> storage, const TorchModelFiles& model)
      : storage_(std::move(storage)),
        info_{.format = "torch",
              .producer = "transformers, as torch.save writes it",
              .readers = "transformers",
              .conventions = {.model_folder = true}},
        checked_(model.files.size()) {
    info_.adapter_files = model.adapter_files;
    if (model.index_file) info_.index_files.push_back(*model.index_file);
    std::set<std::string> keys;
    for (const std::string& file : model.files) add({file, ""}, keys);
    if (model.index_file) check_index(model);
  }

  const CheckpointInfo& info() const noexcept override { return info_; }
  const Metadata& metadata() const noexcept override { return metadata_; }
  const Storage& storage() const noexcept override { return *storage_; }

  Value common_state() const override {
    if (rests_.size() == 1) return with_tensors(0);
    if (info_.conventions.model_folder && std::ranges::all_of(rests_, [](const Value& rest) {
          return rest.is_dict() && rest.size() == 0;
        }))
      return Value::dict();
    Dict states;
    for (std::size_t file = 0; file < rests_.size(); ++file)
      states.set(metadata_.files[file], with_tensors(file));
    return states;
  }

  ChunkPayload locate(std::size_t tensor, std::size_t, const ReadableFile&) const override {
    return payloads_.at(tensor);
  }

  Bytes object_bytes(std::size_t) const override { throw no_objects(); }
  Value decode_object(std::size_t, ByteView) const override { throw no_objects(); }
  bool check_object(std::size_t) const override { throw no_objects(); }

  /// A CRC covers a whole storage, which tensors may share, and the pickle matters to all of them,
  /// so the first question about a file checks all of it.
  bool check_chunk(std::size_t tensor, std::size_t, const ReadableFile&) const override {
    const std::uint32_t index = metadata_.tensors.at(tensor).places.front().file;
    FileCheck& check = checked_[index];
    const std::scoped_lock lock(check.mutex);
    if (!check.done) {
      const auto file = storage_->open(metadata_.files[index]);
      check.has_checksums = check_torch_file(*file, 0, file->size());
      check.done = true;
    }
    return check.has_checksums;
  }

 private:
  struct FileCheck {
    std::mutex mutex;
    bool done = false;
    bool has_checksums = false;
  };

  static CheckpointError no_objects() {
    return {ErrorCode::kInvalidArgument, "a checkpoint of format torch has no sharded objects"};
  }

  void add(const SourceFile& source, std::set<std::string>& keys) {
    const auto file = storage_->open(source.name);
    std::vector<RecordedCrc> records;
    NestedState state =
        extract_tensors(load_torch_file(*file, {.lazy = true, .records = &records}));
    std::ranges::sort(records, {}, &RecordedCrc::offset);
    const auto index = static_cast<std::uint32_t>(metadata_.files.size());
    metadata_.files.push_back(source.name);
    for (auto& [path, tensor] : state.tensors) {
      std::string key = source.key_prefix + path;
      if (!keys.insert(key).second)
        fail(*storage_, ErrorCode::kUnsupported, "two tensors have the path " + quote(key),
             source.name);
      const std::uint64_t offset =
          tensor.file_range() == nullptr
              ? 0
              : tensor.file_range()->offset;  // tensors without elements may lack it
      TensorStorageMetadata stored{
          .key = std::move(key),
          .properties = {.dtype = tensor.dtype(), .requires_grad = tensor.requires_grad},
          .size = tensor.shape(),
          .chunks = BoxList(tensor.dim())};
      stored.chunks.push_back(whole(tensor.shape()));
      stored.places.push_back({.file = index, .offset = offset, .length = extent_bytes(tensor)});
      metadata_.tensors.push_back(std::move(stored));
      payloads_.push_back({.offset = offset,
                           .dtype = tensor.dtype(),
                           .strides = tensor.strides(),
                           .contiguous = tensor.is_contiguous(),
                           .record = exact_record(records, offset, extent_bytes(tensor))});
    }
    rests_.push_back(std::move(state.rest));
    records_.push_back(std::move(records));
  }

  void check_index(const TorchModelFiles& model) const {
    std::unordered_map<std::string_view, std::string_view> stored;
    for (const TensorStorageMetadata& tensor : metadata_.tensors)
      stored.emplace(tensor.key, metadata_.files[tensor.places.front().file]);
    const auto disagree = [&](const std::string& key, const std::string& what) {
      throw_error(ErrorCode::kCorrupt,
                  {.key = key, .file = storage_->display_path(*model.index_file)},
                  "{}: index and files are of different models, or one of them is damaged", what);
    };
    for (const auto& [key, file] : model.weight_map) {
      const auto found = stored.find(key);
      if (found == stored.end() || found->second != file)
        disagree(key,
                 str_format("the index says that the tensor is in {}, but it is {}", quote(file),
                            found == stored.end() ? std::string("in no file")
                                                  : "in " + quote(std::string(found->second))));
      stored.erase(found);
    }
    if (!stored.empty())
      disagree(std::string(stored.begin()->first),
               str_format("the tensor is in {}, but not in the index",
                          quote(std::string(stored.begin()->second))));
  }

  void check_ranks(const std::vector<SourceFile>& sources) const {
    std::vector<RankFile> files;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (!sources[i].of_rank) continue;
      files.push_back(*sources[i].of_rank);
      files.back().state = &rests_[i];
      files.back().has_elements =
          std::ranges::any_of(metadata_.tensors, [&](const TensorStorageMetadata& tensor) {
            return tensor.places.front().file == i && tensor.places.front().length > 0;
          });
    }
    check_rank_grid(*storage_, files);
  }

  /// Returns the rest of a file's state, with the tensors inside tuples and objects read.
  Value with_tensors(std::size_t index) const {
    const auto file = storage_->open(metadata_.files[index]);
    return replace_tensors(rests_[index], [&](const Tensor& tensor) {
      return read_lazy_tensor(tensor, *file, records_[index]);
    });
  }

  std::shared_ptr<const Storage> storage_;
  CheckpointInfo info_;
  Metadata metadata_;
  std::vector<ChunkPayload> payloads_;             // same order as metadata_.tensors
  std::vector<Value> rests_;                       // same order as metadata_.files
  std::vector<std::vector<RecordedCrc>> records_;  // same order, by offset
  mutable std::vector<FileCheck> checked_;
};

}  // namespace

bool is_rank_folder(const std::string& name) {
  return rank_folder_numbers(name).has_value();
}

std::unique_ptr<CheckpointReader> open_torch_model(std::shared_ptr<const Storage> storage,
                                                   const TorchModelFiles& model) {
  return std::make_unique<LegacyReader>(std::move(storage), model);
}

std::unique_ptr<CheckpointReader> open_legacy_torch(std::shared_ptr<const Storage> storage,
                                                    const std::optional<std::string>& file) {
  if (file)
    return std::make_unique<LegacyReader>(std::move(storage), std::vector{SourceFile{*file, ""}},
                                          "");
  const std::vector<SourceFile> files = find_files(*storage);
  return std::make_unique<LegacyReader>(std::move(storage), files,
                                        "Megatron-LM, one file per model-parallel rank");
}

}  // namespace dckpt
