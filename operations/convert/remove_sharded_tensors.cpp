// The protocol for removing keys from a checkpoint in place. integrity.json must never contradict
// the files, and two files cannot change in one step. In between, the manifest therefore does not
// mention the files that are about to change.
//
// Two removals at once would each write back the keys that the other has removed, and so would a
// conversion of the checkpoint to itself. All steps are therefore done under the lock of those who
// change or replace a checkpoint. If the storage has no locks, or a pool of workers has replaced
// the checkpoint, which takes no lock because its members succeed each other, only the comparisons
// before each step protect the checkpoint.
//
//      step                                               a crash after it leaves
//   1  write the new .metadata and manifests under hidden   the old checkpoint, and hidden files
//      names, sync each
//   2  integrity.json without .metadata and the files to    the old checkpoint
//      be deleted
//   3  the new .metadata                                    the new checkpoint, and files that
//                                                           nothing refers to
//   4  delete these files, sync their directories           the new checkpoint
//   5  integrity.json with the new .metadata                the new checkpoint
//
// Steps 2, 3 and 5 are renames, each followed by a sync of the directory. A checkpoint without
// integrity.json has no steps 2 and 5. A second call after a crash between 3 and 5 finds no key,
// but leftover files or a manifest without .metadata, and runs all steps. Until then, verification
// reports that nothing protects .metadata.

#include "operations/convert/remove_sharded_tensors.h"

#include <algorithm>
#include <set>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/hash.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "operations/convert/removal/metadata_filter.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/pickle/read_pickle_file.h"
#include "strategies/storage/staged_file.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{8} << 30;
constexpr std::size_t kMaxSuggestions = 10'000;
constexpr std::string_view kDataSuffix = ".distcp";

class KeyRemover {
 public:
  KeyRemover(std::shared_ptr<Storage> storage, std::string_view prefix)
      : storage_(std::move(storage)), prefix_(prefix) {
    if (prefix_.empty())
      throw_error(ErrorCode::kInvalidArgument,
                  "cannot remove keys: the prefix is empty, which every key begins with");
    open_torch_dist(storage_);  // an unreadable checkpoint is not changed
    const auto file = storage_->open(kMetadataFile);
    old_pickle_ = pickle::read_pickle_file(*file, kMaxMetadataBytes);
    old_ = read_dcp_metadata(old_pickle_, file->name());
    read_manifest();
    look_at_files();
    count();
    if (result_.tensors + result_.objects + result_.files.size() == 0 && !was_interrupted())
      nothing_matches();
  }

  const RemovedTensors& result() const noexcept { return result_; }

  void run(const ChangeLock& lock) {
    const Bytes new_pickle = rewritten();
    std::string without_metadata;
    std::string with_metadata;
    std::optional<StagedFile> unclaiming;
    std::optional<StagedFile> claiming;
    StagedFile metadata(*storage_, kMetadataFile, new_pickle);  // 1
    if (manifest_) {
      std::erase_if(manifest_->files, [&](const IntegrityManifest::Entry& entry) {
        return entry.name == kMetadataFile || is_deleted(entry.name);
      });
      without_metadata = write_integrity_manifest(*manifest_);
      unclaiming.emplace(*storage_, kIntegrityFile, as_bytes(without_metadata));
      manifest_->files.push_back({kMetadataFile, sha256_hex(new_pickle), new_pickle.size()});
      with_metadata = write_integrity_manifest(*manifest_);
      claiming.emplace(*storage_, kIntegrityFile, as_bytes(with_metadata));
    }
    require_unchanged();
    lock.require_held();
    if (unclaiming) unclaiming->commit();  // 2
    lock.require_held();
    metadata.commit();  // 3
    lock.require_held();
    delete_files();  // 4
    lock.require_held();
    if (claiming) claiming->commit();  // 5
  }

 private:
  void require_unchanged() const {
    const auto file = storage_->open(kMetadataFile);
    if (std::ranges::equal(read_file(*file, kMaxMetadataBytes), old_pickle_)) return;
    throw_error(ErrorCode::kAborted, {.file = file->name()},
                "cannot remove keys: another job has changed .metadata meanwhile; nothing "
                "was removed, try again when it has ended");
  }

  bool is_removed(std::string_view key) const {
    return key.starts_with(prefix_) && key != kCommonStateKey;
  }
  bool is_deleted(const std::string& file) const {
    return std::ranges::binary_search(result_.files, file);
  }

  void read_manifest() {
    manifest_ = find_integrity_manifest(*storage_);
    if (!manifest_) return;
    for (const IntegrityManifest::Entry& entry : manifest_->files) {
      if (entry.name != kMetadataFile || entry.sha256 == sha256_hex(old_pickle_)) continue;
      throw_error(
          ErrorCode::kCorrupt, {.file = storage_->display_path(kMetadataFile)},
          "cannot remove keys: .metadata is not the file whose SHA-256 integrity.json has, and "
          "would get a valid one; 'dckpt verify --deep' tells what is damaged");
    }
  }

  /// Returns whether an interrupted removal left integrity.json without .metadata.
  bool was_interrupted() const {
    return manifest_ &&
           std::ranges::none_of(manifest_->files, [](const IntegrityManifest::Entry& entry) {
             return entry.name == kMetadataFile;
           });
  }

  /// Finds the data files that hold only removed entries: those that the metadata name, and those
  /// that a previous removal has left.
  void look_at_files() {
    std::vector<bool> keeps(old_.files.size(), false);
    std::vector<std::uint64_t> removed_bytes(old_.files.size(), 0);
    const auto see = [&](const std::string& key, const StorageInfo& place) {
      if (is_removed(key)) {
        removed_bytes[place.file] += place.length;
      } else {
        keeps[place.file] = true;
      }
    };
    for (const TensorStorageMetadata& tensor : old_.tensors) {
      for (const StorageInfo& place : tensor.places) see(tensor.key, place);
    }
    for (const BytesStorageMetadata& object : old_.objects) see(object.key, object.place);
    for (std::size_t file = 0; file < old_.files.size(); ++file) {
      // A file of another name may hold more than data, whatever the metadata say.
      if (!keeps[file] && old_.files[file].ends_with(kDataSuffix)) {
        result_.files.push_back(old_.files[file]);
      } else {
        result_.bytes_kept += removed_bytes[file];
      }
    }
    const std::set<std::string_view> named(old_.files.begin(), old_.files.end());
    for (const FileInfo& entry : storage_->list("")) {
      const bool left_over = entry.kind == FileInfo::Kind::kRegular &&
                             entry.name.starts_with(prefix_) && entry.name.ends_with(kDataSuffix) &&
                             !named.contains(entry.name);
      if (left_over) result_.files.push_back(entry.name);
    }
    std::ranges::sort(result_.files);
    std::erase_if(result_.files, [&](const std::string& file) {
      const std::optional<FileInfo> found = storage_->stat(file);
      const bool is_file = found && found->kind == FileInfo::Kind::kRegular;
      if (is_file) result_.bytes_freed += found->size;
      return !is_file;
    });
  }

  void count() {
    result_.tensors = static_cast<std::uint64_t>(std::ranges::count_if(
        old_.tensors, [&](const TensorStorageMetadata& tensor) { return is_removed(tensor.key); }));
    result_.objects = static_cast<std::uint64_t>(std::ranges::count_if(
        old_.objects, [&](const BytesStorageMetadata& object) { return is_removed(object.key); }));
  }

  [[noreturn]] void nothing_matches() const {
    std::set<std::string> beginnings;  // prefixes of keys, up to a dot
    const auto add = [&](const std::string& key) {
      for (std::size_t dot = key.find('.');
           dot != std::string::npos && beginnings.size() < kMaxSuggestions;
           dot = key.find('.', dot + 1)) {
        beginnings.insert(key.substr(0, dot + (prefix_.ends_with('.') ? 1 : 0)));
      }
      if (beginnings.size() < kMaxSuggestions) beginnings.insert(key);
    };
    for (const TensorStorageMetadata& tensor : old_.tensors) add(tensor.key);
    for (const BytesStorageMetadata& object : old_.objects) add(object.key);
    const std::vector<std::string> candidates(beginnings.begin(), beginnings.end());
    const auto close = nearest(prefix_, candidates);
    throw_error(ErrorCode::kInvalidArgument, {.file = storage_->display_path("")},
                "no tensor and no object has a key that begins with {}{}{}", quote(prefix_),
                close ? str_format(" (did you mean {}?)", quote(*close)) : "",
                std::string_view(kCommonStateKey).starts_with(prefix_)
                    ? "; the common state is never removed"
                    : "");
  }

  /// Returns the new metadata after reading it back, because a pickle may do anything: exactly the
  /// entries to keep must remain.
  Bytes rewritten() const {
    Bytes pickle = without_keys(
        old_pickle_, [&](std::string_view key) { return is_removed(key); },
        storage_->display_path(kMetadataFile));
    const Metadata left = read_dcp_metadata(pickle, storage_->display_path(kMetadataFile));
    std::size_t next = 0;
    const bool same_tensors =
        std::ranges::all_of(old_.tensors, [&](const TensorStorageMetadata& tensor) {
          return is_removed(tensor.key) ||
                 (next < left.tensors.size() && same(tensor, left.tensors[next++], left));
        });
    const bool all_tensors = next == left.tensors.size();
    next = 0;
    const bool same_objects =
        std::ranges::all_of(old_.objects, [&](const BytesStorageMetadata& object) {
          return is_removed(object.key) ||
                 (next < left.objects.size() && same(object, left.objects[next++], left));
        });
    if (!same_tensors || !all_tensors || !same_objects || next != left.objects.size()) {
      throw_error(
          ErrorCode::kUnsupported, {.file = storage_->display_path(kMetadataFile)},
          "cannot remove keys: they are written into .metadata in a way that other keys depend on; "
          "'dckpt convert --exclude' makes a copy without them");
    }
    return pickle;
  }

  bool same(const StorageInfo& old_place, const StorageInfo& new_place,
            const Metadata& left) const {
    return old_.files[old_place.file] == left.files[new_place.file] &&
           old_place.offset == new_place.offset && old_place.length == new_place.length &&
           old_place.codec == new_place.codec;
  }
  bool same(const TensorStorageMetadata& before, const TensorStorageMetadata& after,
            const Metadata& left) const {
    return before.key == after.key && before.properties == after.properties &&
           before.size == after.size && before.chunks == after.chunks &&
           before.flattened_shape == after.flattened_shape &&
           std::ranges::equal(
               before.places, after.places,
               [&](const StorageInfo& a, const StorageInfo& b) { return same(a, b, left); });
  }
  bool same(const BytesStorageMetadata& before, const BytesStorageMetadata& after,
            const Metadata& left) const {
    return before.key == after.key && same(before.place, after.place, left);
  }

  void delete_files() {
    std::set<std::string> directories;
    for (const std::string& file : result_.files) {
      storage_->remove_all(file);
      directories.insert(parent_name(file));
    }
    for (const std::string& directory : directories) storage_->sync_directory(directory);
  }

  std::shared_ptr<Storage> storage_;
  std::string prefix_;
  Bytes old_pickle_;
  Metadata old_;
  std::optional<IntegrityManifest> manifest_;
  RemovedTensors result_;
};

}  // namespace

RemovedTensors remove_sharded_tensors(const Location& location, std::string_view key_prefix,
                                      const RemoveOptions& options) try {
  const Location checkpoint = resolve_checkpoint(location, {.iteration = options.iteration});
  const CheckpointInfo info = open_checkpoint(checkpoint)->info();
  if (!info.conventions.records) {
    throw_error(ErrorCode::kUnsupported, {.file = checkpoint.display()},
                "keys can be removed from torch_dist and flattened dcp checkpoints, not from "
                "{}{}; 'dckpt convert --exclude' makes a copy without them",
                info.format, info.conventions.keys_are_paths ? " that was not flattened" : "");
  }
  if (options.stop.stop_requested())
    throw_error(ErrorCode::kCancelled, "the removal was stopped; nothing is changed");
  std::optional<ChangeLock> lock;
  if (!options.dry_run) lock.emplace(checkpoint.directory());
  KeyRemover remover(checkpoint.directory(), key_prefix);
  if (lock && !lock->excludes_others())
    log_warning(
        str_format("{}: make sure that no other job removes keys here, since this storage "
                   "has no locks",
                   quote(checkpoint.display())));
  if (lock) remover.run(*lock);
  return remover.result();
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
