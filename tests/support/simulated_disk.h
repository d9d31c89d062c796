#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "mapping/base/storage_name.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The fate of unsynced changes in a power cut. Operations on one directory survive in their order;
/// between directories and files there is no order.
struct PowerCut {
  enum class Kind { kLosesUnsynced, kKeepsUnsynced, kMixed } kind = Kind::kLosesUnsynced;
  unsigned seed = 0;  ///< for kMixed: each directory is as synced or as it is now, each file keeps
                      ///< some length between the two
};

/// A memory storage that knows which contents and directory entries are durable, and can show what
/// a power cut would leave.
class SimulatedDisk final : public Storage {
 public:
  /// Returns the tree as the next boot finds it.
  std::shared_ptr<Storage> after(const PowerCut& cut) const {
    const std::lock_guard lock(mutex_);
    const auto survivor = memory_storage("survivor:");
    std::mt19937 random(cut.seed);
    copy_surviving(*root_, "", cut.kind, random, *survivor);
    return survivor;
  }

  StorageCapabilities capabilities() const override { return current_->capabilities(); }
  std::string display_path(const std::string& name) const override {
    return current_->display_path(name);
  }
  std::unique_ptr<StorageLock> lock(const std::string& name, const std::string& owner) override {
    return current_->lock(name, owner);
  }
  std::vector<FileInfo> list(const std::string& directory) const override {
    return current_->list(directory);
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    return current_->stat(name);
  }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    return current_->open(name);
  }

  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options = {}) override {
    const std::lock_guard lock(mutex_);
    auto file = current_->create(name, options);
    const auto node = std::make_shared<Node>();
    entry(name) = node;
    return std::make_unique<File>(*this, std::move(file), node);
  }

  void make_directory(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    current_->make_directory(name);
    std::string path;
    for (const std::string_view component : directory_components(name)) {
      path = join_name(path, component);
      if (!entry(path)) entry(path) = std::make_shared<Node>();
    }
  }

  void rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    current_->rename(from, to);
    const NodePtr node = std::exchange(entry(from), nullptr);
    entry(to) = node;
  }

  bool exchange(const std::string& a, const std::string& b) override {
    const std::lock_guard lock(mutex_);
    if (!current_->exchange(a, b)) return false;
    std::swap(entry(a), entry(b));
    return true;
  }

  void remove_all(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto info = current_->stat(name);
    if (!info) return;
    current_->remove_all(name);
    // A tree is removed entry by entry; each removal may be durable or not.
    forget(*entry(name));
    entry(name) = nullptr;
  }

  void sync_directory(const std::string& directory) override {
    const std::lock_guard lock(mutex_);
    current_->sync_directory(directory);
    Node& node = directory.empty() ? *root_ : *entry(directory);
    node.durable_entries = node.entries;
  }

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;

  /// A file or a directory, with its durable state.
  struct Node {
    bool file = false;
    Bytes content{};
    std::size_t durable_size = 0;
    std::map<std::string, NodePtr> entries{};  ///< null: removed
    std::map<std::string, NodePtr> durable_entries{};
  };

  class File final : public WritableFile {
   public:
    File(SimulatedDisk& disk, std::unique_ptr<WritableFile> file, NodePtr node)
        : disk_(disk), file_(std::move(file)), node_(std::move(node)) {
      node_->file = true;
    }

    const std::string& name() const noexcept override { return file_->name(); }
    std::uint64_t position() const noexcept override { return file_->position(); }

    void append(std::span<const ByteView> parts) override {
      const std::lock_guard lock(disk_.mutex_);
      file_->append(parts);
      for (const ByteView part : parts)
        node_->content.insert(node_->content.end(), part.begin(), part.end());
    }

    void sync() override {
      const std::lock_guard lock(disk_.mutex_);
      file_->sync();
      node_->durable_size = node_->content.size();
    }

    void close() override { file_->close(); }

   private:
    SimulatedDisk& disk_;
    std::unique_ptr<WritableFile> file_;
    NodePtr node_;
  };

  /// Returns the entry for a name whose directory exists.
  NodePtr& entry(const std::string& name) {
    const std::string directory = parent_name(name);
    Node* node = root_.get();
    for (const std::string_view component : directory_components(directory))
      node = node->entries.at(std::string(component)).get();
    return node->entries[base_name(name)];
  }

  static void forget(Node& node) {
    for (auto& [name, child] : node.entries) {
      if (child) forget(*child);
      child = nullptr;
    }
  }

  static void copy_surviving(const Node& node, const std::string& path, PowerCut::Kind kind,
                             std::mt19937& random, Storage& into) {
    const bool keep =
        kind == PowerCut::Kind::kMixed ? random() % 2 == 0 : kind == PowerCut::Kind::kKeepsUnsynced;
    if (node.file) {
      std::size_t size = keep ? node.content.size() : node.durable_size;
      if (kind == PowerCut::Kind::kMixed && random() % 2 == 0)
        size = node.durable_size + random() % (node.content.size() - node.durable_size + 1);
      into.create(path)->append(ByteView(node.content).first(size));
      return;
    }
    if (!path.empty()) into.make_directory(path);
    for (const auto& [name, child] : keep ? node.entries : node.durable_entries) {
      if (child) copy_surviving(*child, join_name(path, name), kind, random, into);
    }
  }

  mutable std::mutex mutex_;
  std::shared_ptr<Storage> current_ = memory_storage("disk:");
  NodePtr root_ = std::make_shared<Node>();
};

}  // namespace dckpt
