#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// A fault at one operation of a FaultyStorage. All operations count, including those of its open
/// files, from 1.
struct Fault {
  enum class Kind {
    kError,  ///< the operation fails; an append has written half, a removal has removed some
    kErrorAfterEffect,  ///< the operation takes effect but reports an error, as in a network file
                        ///< system
    kCrash,             ///< as kError, and every later operation also fails: the process is dead
    kStop,  ///< the process is stopped before the operation, and goes on after `meanwhile`
  };
  Kind kind = Kind::kError;
  std::uint64_t at = 0;  ///< number of the operation; 0 for never
  std::function<void(std::string_view operation)> meanwhile{};
};

/// Forwards everything to `storage` but fails as specified. Injected errors say "injected".
/// Thread-safe.
class FaultyStorage : public Storage {
 public:
  explicit FaultyStorage(std::shared_ptr<Storage> storage, Fault fault = {},
                         bool can_exchange = true)
      : storage_(std::move(storage)),
        can_exchange_(can_exchange),
        plan_(std::make_shared<Plan>(std::move(fault))) {}

  std::uint64_t operations() const { return plan_->operations; }
  bool fired() const { return plan_->fault.at != 0 && plan_->operations >= plan_->fault.at; }

  StorageCapabilities capabilities() const override { return storage_->capabilities(); }
  std::string display_path(const std::string& name) const override {
    return storage_->display_path(name);
  }

  std::string absolute(const std::string& name) const override { return storage_->absolute(name); }
  std::optional<std::uint64_t> available_space() const override {
    return storage_->available_space();
  }
  std::unique_ptr<StorageLock> lock(const std::string& name, const std::string& owner) override {
    return plan_->run("lock", [&] { return storage_->lock(name, owner); });
  }

  std::vector<FileInfo> list(const std::string& directory) const override {
    return plan_->run("list", [&] { return storage_->list(directory); });
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    return plan_->run("stat", [&] { return storage_->stat(name); });
  }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    return plan_->run(
        "open", [&] { return std::make_unique<FaultyReadableFile>(storage_->open(name), plan_); });
  }
  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options = {}) override {
    return plan_->run("create", [&] {
      return std::make_unique<FaultyWritableFile>(storage_->create(name, options), plan_);
    });
  }
  void make_directory(const std::string& name) override {
    plan_->run("make_directory", [&] { storage_->make_directory(name); });
  }
  void rename(const std::string& from, const std::string& to) override {
    plan_->run("rename", [&] { storage_->rename(from, to); });
  }
  bool exchange(const std::string& a, const std::string& b) override {
    return plan_->run("exchange", [&] { return can_exchange_ && storage_->exchange(a, b); });
  }
  void put(const std::string& name, ByteView content) override {
    if (capabilities().rename)
      Storage::put(name, content);
    else
      plan_->run("put", [&] { storage_->put(name, content); });
  }
  void remove_all(const std::string& name) override {
    plan_->run(
        "remove_all", [&] { storage_->remove_all(name); }, [&] { remove_some(name); });
  }
  void sync_directory(const std::string& directory) override {
    plan_->run("sync_directory", [&] { storage_->sync_directory(directory); });
  }

 private:
  struct Plan {
    explicit Plan(Fault planned) : fault(std::move(planned)) {}

    template <typename Work>
    auto run(const char* what, Work&& work, const std::function<void()>& half = {})
        -> decltype(work()) {
      while (stopped && stopped_thread != std::this_thread::get_id())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::uint64_t number = ++operations;
      if (number == fault.at && fault.kind == Fault::Kind::kStop) {
        stopped_thread = std::this_thread::get_id();
        stopped = true;
        fault.meanwhile(what);
        stopped = false;
        return work();
      }
      if (fault.at == 0 || number < fault.at ||
          (number > fault.at && fault.kind != Fault::Kind::kCrash))
        return work();
      if (number == fault.at && fault.kind == Fault::Kind::kErrorAfterEffect) work();
      if (number == fault.at && fault.kind != Fault::Kind::kErrorAfterEffect && half) half();
      throw CheckpointError(
          ErrorCode::kIo,
          std::string(number == fault.at ? "injected fault" : "injected: dead since the crash") +
              " at operation " + std::to_string(number) + " (" + what + ")");
    }

    const Fault fault;
    std::atomic<std::uint64_t> operations{0};
    std::atomic<bool> stopped{false};
    std::atomic<std::thread::id> stopped_thread{};
  };

  class FaultyReadableFile final : public ReadableFile {
   public:
    FaultyReadableFile(std::unique_ptr<ReadableFile> file, std::shared_ptr<Plan> plan)
        : file_(std::move(file)), plan_(std::move(plan)) {}
    const std::string& name() const noexcept override { return file_->name(); }
    std::uint64_t size() const noexcept override { return file_->size(); }
    void read(std::uint64_t offset, MutableByteView into) const override {
      plan_->run("read", [&] { file_->read(offset, into); });
    }
    void prefetch(std::uint64_t offset, std::uint64_t length) const override {
      file_->prefetch(offset, length);
    }

   private:
    std::unique_ptr<ReadableFile> file_;
    std::shared_ptr<Plan> plan_;
  };

  class FaultySection final : public FileSection {
   public:
    FaultySection(std::unique_ptr<FileSection> section, std::shared_ptr<Plan> plan)
        : section_(std::move(section)), plan_(std::move(plan)) {}
    std::uint64_t position() const noexcept override { return section_->position(); }
    void append(std::span<const ByteView> parts) override {
      plan_->run(
          "append", [&] { section_->append(parts); },
          [&] { section_->append(parts.first(parts.size() / 2)); });
    }
    void close() override {
      plan_->run("close", [&] { section_->close(); });
    }

   private:
    std::unique_ptr<FileSection> section_;
    std::shared_ptr<Plan> plan_;
  };

  class FaultyWritableFile final : public WritableFile {
   public:
    FaultyWritableFile(std::unique_ptr<WritableFile> file, std::shared_ptr<Plan> plan)
        : file_(std::move(file)), plan_(std::move(plan)) {}
    const std::string& name() const noexcept override { return file_->name(); }
    std::uint64_t position() const noexcept override { return file_->position(); }
    void append(std::span<const ByteView> parts) override {
      plan_->run(
          "append", [&] { file_->append(parts); },
          [&] { file_->append(parts.first(parts.size() / 2)); });
    }
    void sync() override {
      plan_->run("sync", [&] { file_->sync(); });
    }
    void close() override {
      plan_->run("close", [&] { file_->close(); });
    }
    std::unique_ptr<FileSection> section(std::uint64_t offset) override {
      auto section = file_->section(offset);
      return section ? std::make_unique<FaultySection>(std::move(section), plan_) : nullptr;
    }

   private:
    std::unique_ptr<WritableFile> file_;
    std::shared_ptr<Plan> plan_;
  };

  void remove_some(const std::string& name) {
    const auto info = storage_->stat(name);
    if (!info || info->kind != FileInfo::Kind::kDirectory) return;
    const auto entries = storage_->list(name);
    for (std::size_t i = 0; i < (entries.size() + 1) / 2; ++i)
      storage_->remove_all(join_name(name, entries[i].name));
  }

  std::shared_ptr<Storage> storage_;
  bool can_exchange_;
  std::shared_ptr<Plan> plan_;
};

}  // namespace dckpt
