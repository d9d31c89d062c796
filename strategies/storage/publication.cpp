#include "strategies/storage/publication.h"

#include <exception>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/publication_body.h"

namespace dckpt {
namespace {

void require_token(const std::string& token) {
  if (token.empty() || token.find('/') != std::string::npos) {
    throw_error(ErrorCode::kInvalidArgument,
                "cannot begin a save: the token {} is empty or holds a slash", quote(token));
  }
}

}  // namespace

Publication Publication::begin(std::shared_ptr<Storage> storage, std::string name,
                               const std::string& token, Options options) {
  require_token(token);
  const bool renames = storage->capabilities().rename;
  return of(
      renames ? begin_by_rename(std::move(storage), std::move(name), "", token, std::move(options))
              : begin_in_place(std::move(storage), std::move(name), token, std::move(options)));
}

Publication Publication::adopt(std::shared_ptr<Storage> storage, std::string name,
                               const std::string& left, const std::string& token, Options options) {
  require_token(token);
  return of(begin_by_rename(std::move(storage), std::move(name), left, token, std::move(options)));
}

Publication Publication::of(std::unique_ptr<Body> body) {
  Publication begun(std::move(body));
  begun.body_->identify_staging();
  return begun;
}

Publication::Publication(std::unique_ptr<Body> body) : body_(std::move(body)) {}

Publication::Publication(Publication&&) noexcept = default;

Publication::~Publication() {
  if (body_) abandon();
}

const std::string& Publication::staging() const noexcept {
  return body_->staging();
}

void Publication::commit(const std::function<void()>& write_marker) {
  if (!body_->is_open())
    throw_error(ErrorCode::kInvalidArgument, {.file = body_->name()},
                "cannot commit the save: it was committed or abandoned before");
  body_->commit(write_marker);
}

void Publication::abandon() noexcept {
  if (!body_->is_open()) return;
  body_->close();
  try {
    body_->abandon();
  } catch (const std::exception& error) {
    try {
      log_warning("the unfinished save could not be removed or set aside: " +
                  std::string(error.what()));
    } catch (...) {  // there is no memory for a message, and nothing else can be done
    }
  }
}

void Publication::discard_unfinished() noexcept {
  body_->discard_unfinished();
}

std::optional<FileInfo> must_replace(const Storage& storage, const std::string& name,
                                     bool overwrite) {
  std::optional<FileInfo> found = storage.stat(name);
  if (!found) return std::nullopt;
  if (found->kind != FileInfo::Kind::kDirectory) {
    throw_error(ErrorCode::kAlreadyExists, {.file = storage.display_path(name)},
                "cannot save a checkpoint here: the target exists and is not a "
                "directory; choose another name");
  }
  if (overwrite) return found;
  const std::size_t entries = storage.list(name).size();
  if (entries > 0) {
    throw_error(ErrorCode::kAlreadyExists, {.file = storage.display_path(name)},
                "refusing to replace the directory: it holds {}; "
                "choose another name, or allow overwriting",
                counted(entries, "entry", "entries"));
  }
  return found;
}

void sync_tree(Storage& storage, const std::string& directory) {
  for (const FileInfo& entry : storage.list(directory)) {
    if (entry.kind == FileInfo::Kind::kDirectory)
      sync_tree(storage, join_name(directory, entry.name));  // names end at kMaxNameDepth
  }
  storage.sync_directory(directory);
}

std::vector<std::string> move_entries(Storage& storage, const std::vector<std::string>& names,
                                      const std::string& from, const std::string& to) {
  std::vector<std::string> moved;
  for (const std::string& name : names) {
    if (storage.stat(join_name(to, name))) continue;
    storage.rename(join_name(from, name), join_name(to, name));
    moved.push_back(name);
  }
  if (!moved.empty()) storage.sync_directory(to);
  return moved;
}

}  // namespace dckpt
