#include "strategies/views/overlaid_reader.h"

#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "mapping/planning/rearrange.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

/// Returns the name for a file of the other checkpoint, which is not that of any file of the first.
std::string name_of_other(const std::string& file) {
  return kJoinedFile + file;
}

/// The files of two checkpoints.
class WithOtherFiles final : public ForwardingStorage {
 public:
  WithOtherFiles(std::shared_ptr<Storage> storage, std::shared_ptr<const CheckpointReader> other)
      : ForwardingStorage(std::move(storage)), other_(std::move(other)) {
    for (const std::string& file : other_->metadata().files)
      files_.emplace(name_of_other(file), file);
  }

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    const auto found = files_.find(name);
    return found == files_.end() ? ForwardingStorage::open(name)
                                 : other_->storage().open(found->second);
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    const auto found = files_.find(name);
    return found == files_.end() ? ForwardingStorage::stat(name)
                                 : other_->storage().stat(found->second);
  }

 private:
  std::shared_ptr<const CheckpointReader> other_;
  std::map<std::string, std::string> files_;
};

class OverlaidReader final : public ForwardingReader {
 public:
  OverlaidReader(std::unique_ptr<CheckpointReader> source,
                 std::shared_ptr<const CheckpointReader> other,
                 const std::vector<OverlaidTensor>& tensors)
      : ForwardingReader(std::move(source)),
        other_(std::move(other)),
        metadata_(source_->metadata()),
        from_other_(metadata_.tensors.size()) {
    const auto first_file = static_cast<std::uint32_t>(metadata_.files.size());
    for (const std::string& file : other_->metadata().files)
      metadata_.files.push_back(name_of_other(file));
    std::unordered_map<std::string_view, std::size_t> positions;
    for (std::size_t i = 0; i < source_->metadata().tensors.size(); ++i)
      positions.emplace(source_->metadata().tensors[i].key, i);
    for (const OverlaidTensor& tensor : tensors) {
      TensorStorageMetadata shown = other_->metadata().tensors.at(tensor.tensor);
      shown.key = tensor.key;
      for (StorageInfo& place : shown.places) place.file += first_file;
      const auto found = positions.find(tensor.key);
      const std::size_t position =
          found == positions.end() ? metadata_.tensors.size() : found->second;
      if (position == metadata_.tensors.size()) {
        metadata_.tensors.emplace_back();
        from_other_.emplace_back();
      }
      metadata_.tensors[position] = std::move(shown);
      from_other_[position] = tensor.tensor;
    }
    // Readers hand out their storage to be read only.
    storage_ = std::make_shared<WithOtherFiles>(
        std::const_pointer_cast<Storage>(source_->storage().shared_from_this()), other_);
  }

  const Metadata& metadata() const noexcept override { return metadata_; }
  const Storage& storage() const noexcept override { return *storage_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    const std::optional<std::size_t>& other = from_other_.at(tensor);
    return other ? other_->locate(*other, chunk, file) : source_->locate(tensor, chunk, file);
  }
  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    const std::optional<std::size_t>& other = from_other_.at(tensor);
    return other ? other_->check_chunk(*other, chunk, file)
                 : source_->check_chunk(tensor, chunk, file);
  }

 private:
  std::shared_ptr<const CheckpointReader> other_;
  Metadata metadata_;
  std::vector<std::optional<std::size_t>> from_other_;  // same order as the tensors
  std::shared_ptr<const Storage> storage_;
};

}  // namespace

std::unique_ptr<CheckpointReader> overlaid_reader(std::unique_ptr<CheckpointReader> source,
                                                  std::shared_ptr<const CheckpointReader> other,
                                                  const std::vector<OverlaidTensor>& tensors) {
  return std::make_unique<OverlaidReader>(std::move(source), std::move(other), tensors);
}

}  // namespace dckpt
