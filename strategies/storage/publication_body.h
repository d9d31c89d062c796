#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "strategies/storage/publication.h"

// Internal to publishing; not installed.
namespace dckpt {

/// One way of publishing; an object stands for one attempt. Either commit() or abandon() is called,
/// at most once.
class Publication::Body {
 public:
  Body(std::shared_ptr<Storage> storage, std::string name, Options options)
      : storage_(std::move(storage)), name_(std::move(name)), options_(std::move(options)) {}
  virtual ~Body() = default;
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;

  /// Notes which directory the files go to. It is called once, as soon as there is one.
  virtual void identify_staging() {}
  virtual const std::string& staging() const noexcept = 0;
  virtual void commit(const std::function<void()>& write_marker) = 0;
  /// Throws; Publication logs it.
  virtual void abandon() = 0;

  const std::string& name() const noexcept { return name_; }
  /// False once the directory has been published, or nothing may be removed any more.
  bool is_open() const noexcept { return open_; }
  void close() noexcept { open_ = false; }
  void discard_unfinished() noexcept { options_.keep_unfinished = false; }

 protected:
  const std::shared_ptr<Storage> storage_;
  const std::string name_;
  Options options_;

 private:
  bool open_ = true;
};

/// `left` is as for Publication::adopt(), or empty.
std::unique_ptr<Publication::Body> begin_by_rename(std::shared_ptr<Storage> storage,
                                                   std::string name, const std::string& left,
                                                   const std::string& token,
                                                   Publication::Options options);
std::unique_ptr<Publication::Body> begin_in_place(std::shared_ptr<Storage> storage,
                                                  std::string name, const std::string& token,
                                                  Publication::Options options);

/// Returns the directory at `name` that is to be replaced, if there is one. Throws (already exists)
/// if something is there that must not be replaced.
std::optional<FileInfo> must_replace(const Storage& storage, const std::string& name,
                                     bool overwrite);

/// Makes the entries of all directories of a tree durable.
void sync_tree(Storage& storage, const std::string& directory);

}  // namespace dckpt
