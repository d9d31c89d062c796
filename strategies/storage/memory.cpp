#include "strategies/storage/memory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"

namespace dckpt {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// A file or a directory.
struct Node {
  bool directory = false;
  Bytes content{};
  std::map<std::string, std::shared_ptr<Node>, std::less<>> entries{};
  std::uint64_t id = next_id();
};
using NodePtr = std::shared_ptr<Node>;

/// The storage and its open files share it; the files may outlive the storage. The mutex guards
/// every node.
struct Tree {
  std::shared_mutex mutex;
  Node root{.directory = true};
  std::map<std::string, std::string> owners{};  ///< owners of locks, by lock name
};

class MemoryLock final : public StorageLock {
 public:
  MemoryLock(std::shared_ptr<Tree> tree, std::string name)
      : tree_(std::move(tree)), name_(std::move(name)) {}
  MemoryLock(const MemoryLock&) = delete;
  MemoryLock& operator=(const MemoryLock&) = delete;
  ~MemoryLock() override {
    const std::unique_lock lock(tree_->mutex);
    tree_->owners.erase(name_);
  }

 private:
  std::shared_ptr<Tree> tree_;
  std::string name_;
};

class MemoryReadableFile final : public ReadableFile {
 public:
  MemoryReadableFile(std::shared_ptr<Tree> tree, NodePtr node, std::string path)
      : tree_(std::move(tree)),
        node_(std::move(node)),
        path_(std::move(path)),
        size_(node_->content.size()) {}

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t size() const noexcept override { return size_; }

  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), size_)) {
      throw_error(ErrorCode::kCorrupt, {.file = path_, .offset = offset},
                  "cannot read {} bytes: the file has only {}", grouped(into.size()),
                  grouped(size_));
    }
    const std::shared_lock lock(tree_->mutex);
    const ByteView bytes = ByteView(node_->content).subspan(offset, into.size());
    std::copy(bytes.begin(), bytes.end(), into.begin());
  }

  void prefetch(std::uint64_t, std::uint64_t) const override {}

 private:
  std::shared_ptr<Tree> tree_;
  NodePtr node_;
  std::string path_;
  std::uint64_t size_;
};

class MemorySection final : public FileSection {
 public:
  MemorySection(std::shared_ptr<Tree> tree, NodePtr node, std::uint64_t offset)
      : tree_(std::move(tree)), node_(std::move(node)), position_(offset) {}

  std::uint64_t position() const noexcept override { return position_; }

  void append(std::span<const ByteView> parts) override {
    const std::unique_lock lock(tree_->mutex);
    Bytes& content = node_->content;
    for (const ByteView part : parts) {
      const auto overlap =
          position_ < content.size() ? std::min(part.size(), content.size() - position_) : 0;
      if (content.size() < position_) content.resize(position_);
      const auto middle = part.begin() + static_cast<std::ptrdiff_t>(overlap);
      std::copy(part.begin(), middle, content.begin() + static_cast<std::ptrdiff_t>(position_));
      content.insert(content.end(), middle, part.end());
      position_ += part.size();
    }
  }

  void close() override {}

 private:
  std::shared_ptr<Tree> tree_;
  NodePtr node_;
  std::uint64_t position_;
};

class MemoryWritableFile final : public WritableFile {
 public:
  MemoryWritableFile(std::shared_ptr<Tree> tree, NodePtr node, std::string path)
      : tree_(tree),
        node_(node),
        path_(std::move(path)),
        all_(std::move(tree), std::move(node), 0) {}

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t position() const noexcept override { return all_.position(); }
  void append(std::span<const ByteView> parts) override { all_.append(parts); }
  void sync() override {}
  void close() override {}
  std::unique_ptr<FileSection> section(std::uint64_t offset) override {
    return std::make_unique<MemorySection>(tree_, node_, offset);
  }

 private:
  std::shared_ptr<Tree> tree_;
  NodePtr node_;
  std::string path_;
  MemorySection all_;
};

class MemoryStorage final : public Storage {
 public:
  explicit MemoryStorage(std::string name) : name_(std::move(name)) {}

  StorageCapabilities capabilities() const override { return {.locks = true}; }
  std::string display_path(const std::string& name) const override { return name_ + name; }

  std::vector<FileInfo> list(const std::string& directory) const override {
    const std::vector<std::string_view> components = directory_components(directory);
    const std::shared_lock lock(tree_->mutex);
    const Node* node = walk(components);
    if (node == nullptr) fail("cannot list the directory: there is none", directory);
    std::vector<FileInfo> entries;
    for (const auto& [name, entry] : node->entries) entries.push_back(file_info(name, *entry));
    return entries;
  }

  std::optional<FileInfo> stat(const std::string& name) const override {
    const std::vector<std::string_view> components = name_components(name);
    const std::shared_lock lock(tree_->mutex);
    const NodePtr node = find(components);
    if (!node) return std::nullopt;
    return file_info(std::string(components.back()), *node);
  }

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    const std::vector<std::string_view> components = name_components(name);
    const std::shared_lock lock(tree_->mutex);
    NodePtr node = find(components);
    if (!node)
      throw_error(ErrorCode::kIncomplete, {.file = display_path(name)},
                  "cannot open the file: it does not exist");
    if (node->directory)
      throw_error(ErrorCode::kCorrupt, {.file = display_path(name)},
                  "refusing to read: it is a directory, not a regular file");
    return std::make_unique<MemoryReadableFile>(tree_, std::move(node), display_path(name));
  }

  std::unique_ptr<WritableFile> create(const std::string& name, const CreateOptions&) override {
    const std::vector<std::string_view> components = name_components(name);
    const std::unique_lock lock(tree_->mutex);
    const auto [entry, created] =
        parent(components, "cannot create the file", name)
            .entries.try_emplace(std::string(components.back()), std::make_shared<Node>());
    if (!created) fail("cannot create the file: it exists", name, ErrorCode::kAlreadyExists);
    return std::make_unique<MemoryWritableFile>(tree_, entry->second, display_path(name));
  }

  void make_directory(const std::string& name) override {
    const std::vector<std::string_view> components = directory_components(name);
    const std::unique_lock lock(tree_->mutex);
    Node* node = &tree_->root;
    for (const std::string_view component : components) {
      NodePtr& entry = node->entries[std::string(component)];
      if (!entry) entry = std::make_shared<Node>(Node{.directory = true});
      if (!entry->directory) refuse_path(component);
      node = entry.get();
    }
  }

  void rename(const std::string& from, const std::string& to) override {
    const std::string attempt = "cannot rename to " + quote(to);
    const std::vector<std::string_view> source = name_components(from);
    const std::vector<std::string_view> target = name_components(to);
    const std::unique_lock lock(tree_->mutex);
    Node& source_parent = parent(source, attempt, from);
    Node& target_parent = parent(target, attempt, from);
    const NodePtr node = find(source);
    const NodePtr replaced = find(target);
    if (!node) fail(attempt + ": there is nothing of the old name", from);
    if (replaced && (node->directory || replaced->directory))
      fail(attempt + ": something of that name exists", from, ErrorCode::kAlreadyExists);
    if (node->directory && is_prefix(source, target))
      fail(attempt + ": a directory cannot move into itself", from);
    source_parent.entries.erase(source_parent.entries.find(source.back()));
    target_parent.entries[std::string(target.back())] = node;
  }

  bool exchange(const std::string& a, const std::string& b) override {
    const std::string attempt = "cannot exchange it with " + quote(b);
    const std::vector<std::string_view> first = name_components(a);
    const std::vector<std::string_view> second = name_components(b);
    const std::unique_lock lock(tree_->mutex);
    Node& first_parent = parent(first, attempt, a);
    Node& second_parent = parent(second, attempt, a);
    if (!find(first) || !find(second)) fail(attempt + ": one of them does not exist", a);
    if (is_prefix(first, second) || is_prefix(second, first))
      fail(attempt + ": one of them contains the other", a);
    std::swap(first_parent.entries.find(first.back())->second,
              second_parent.entries.find(second.back())->second);
    return true;
  }

  void remove_all(const std::string& name) override {
    const std::vector<std::string_view> components = name_components(name);
    const std::unique_lock lock(tree_->mutex);
    if (find(components)) {
      Node& directory = parent(components, "cannot remove", name);
      directory.entries.erase(directory.entries.find(components.back()));
    }
  }

  void sync_directory(const std::string& directory) override {
    const std::vector<std::string_view> components = directory_components(directory);
    const std::shared_lock lock(tree_->mutex);
    if (walk(components) == nullptr)
      fail("cannot make the directory durable: there is none", directory);
  }

  /// Excludes other users of this storage. Locks are not part of the tree.
  std::unique_ptr<StorageLock> lock(const std::string& name, const std::string& owner) override {
    name_components(name);
    const std::unique_lock lock(tree_->mutex);
    const auto [holder, taken] = tree_->owners.try_emplace(name, owner);
    if (!taken) {
      throw_error(ErrorCode::kAborted, {.file = display_path(name)},
                  "it is locked by " + printable(holder->second));
    }
    return std::make_unique<MemoryLock>(tree_, name);
  }

 private:
  using Components = std::span<const std::string_view>;

  static FileInfo file_info(std::string name, const Node& node) {
    return {.name = std::move(name),
            .kind = node.directory ? FileInfo::Kind::kDirectory : FileInfo::Kind::kRegular,
            .size = node.content.size(),
            .id = node.directory ? node.id : 0};
  }

  static bool is_prefix(Components prefix, Components whole) {
    return prefix.size() <= whole.size() && std::ranges::equal(prefix, whole.first(prefix.size()));
  }

  [[noreturn]] void fail(const std::string& message, const std::string& name,
                         ErrorCode code = ErrorCode::kIo) const {
    throw_error(code, {.file = display_path(name)}, message);
  }

  [[noreturn]] static void refuse_path(std::string_view component) {
    throw_error(ErrorCode::kCorrupt, "refusing the path: {} is a regular file, not a directory",
                quote(component));
  }

  /// Returns null if the directory is missing.
  Node* walk(Components directory) const {
    Node* node = &tree_->root;
    for (const std::string_view component : directory) {
      const auto found = node->entries.find(component);
      if (found == node->entries.end()) return nullptr;
      node = found->second.get();
      if (!node->directory) refuse_path(component);
    }
    return node;
  }

  NodePtr find(Components name) const {
    const Node* directory = walk(name.first(name.size() - 1));
    if (directory == nullptr) return nullptr;
    const auto found = directory->entries.find(name.back());
    return found == directory->entries.end() ? nullptr : found->second;
  }

  Node& parent(Components name, const std::string& attempt, const std::string& spelt) const {
    Node* directory = walk(name.first(name.size() - 1));
    if (directory == nullptr) fail(attempt + ": there is no such directory", spelt);
    return *directory;
  }

  std::string name_;
  std::shared_ptr<Tree> tree_ = std::make_shared<Tree>();
};

}  // namespace

std::shared_ptr<Storage> memory_storage(std::string name) {
  return std::make_shared<MemoryStorage>(std::move(name));
}

}  // namespace dckpt
