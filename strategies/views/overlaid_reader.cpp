#include "strategies/views/overlaid_reader.h"

#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "mapping/planning/rearrange.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

/// Returns names for the files of the other checkpoint that no file of the first has.
std::vector<std::string> names_of_other(const Metadata& first, const Metadata& other) {
  const std::set<std::string> taken(first.files.begin(), first.files.end());
  std::vector<std::string> names = other.files;
  for (std::string& name : names) {
    do {
      name.insert(0, kJoinedFile);
    } while (taken.contains(name));
  }
  return names;
}

/// The files of two checkpoints.
class WithOtherFiles final : public ForwardingStorage {
 public:
  WithOtherFiles(std::shared_ptr<Storage> storage, std::shared_ptr<const CheckpointReader> other,
                 const std::vector<std::string>& names)
      : ForwardingStorage(std::move(storage)), other_(std::move(other)) {
    for (std::size_t i = 0; i < names.size(); ++i)
      files_.emplace(names[i], other_->metadata().files[i]);
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
    const std::vector<std::string> names = names_of_other(metadata_, other_->metadata());
    metadata_.files.insert(metadata_.files.end(), names.begin(), names.end());
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
        std::const_pointer_cast<Storage>(source_->storage().shared_from_this()), other_, names);
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
