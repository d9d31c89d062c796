#include "strategies/storage/publish.h"

#include <array>
#include <cstdio>
#include <exception>
#include <random>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"

// How the directory N becomes visible. P is the directory that holds it, S its hidden sibling
// `.N.saving-TOKEN`.
//
//      step                                                  a crash after it leaves
//   1  refuse if something is at N that may not be replaced  nothing new
//   2  remove an S of this token, create S                   N as it was; S, hidden
//   3  write the files into S and sync each (the caller)     the same
//   4  sync S, every directory in it, and those above P      the same
//   5  make S visible as N:
//      a  nothing is at N: rename S to N, never replacing    N missing, or complete
//      b  a directory is at N: exchange S and N              N as it was, or the new one complete;
//                                                            the other one at S
//      c  the file system cannot exchange: rename N to       N missing for a moment: the old one is
//         R = `.N.replaced-TOKEN`, then rename S to N        complete in R and `mv R N` brings it
//                                                            back; then N complete
//   6  sync P                                                N complete
//   7  move what belongs to somebody else from what was      N complete; the rest of the replaced
//      replaced (S or R) to N                                one, hidden
//   8  remove what was replaced                              N complete; some of the replaced one,
//                                                            hidden
//
// b also serves where N is an empty directory that may be replaced without being asked: if it turns
// out not to be empty after it was moved out of the way, step 5 is undone. Nothing but S is ever
// removed before step 6 has succeeded.
//
// Whoever can go on with S after a crash adopts it: renames it to the S of its own token, instead
// of step 2. What is kept of an attempt that failed waits as `.N.interrupted-TOKEN`, which nobody
// writes to.
//
// If a step fails, step 5 is undone and P synced before S is removed: a crash must not find N
// durable and its files gone. If undoing fails too, or an exchange fails so that nobody can tell
// whether it happened, both directories stay where they are and a warning names them.

namespace dckpt {
namespace {

std::string hidden_sibling(const std::string& name, const std::string& purpose,
                           const std::string& token) {
  return join_name(parent_name(name), to_string(HiddenSibling{base_name(name), purpose, token}));
}

/// Whether there is a directory at `name` to be replaced. Throws if there is something that must
/// not be.
bool must_replace(const Storage& storage, const std::string& name, bool overwrite) {
  const std::optional<FileInfo> found = storage.stat(name);
  if (!found) return false;
  if (found->kind != FileInfo::Kind::kDirectory) {
    throw CheckpointError(ErrorCode::kAlreadyExists,
                          "cannot save a checkpoint here: the target exists and is not a "
                          "directory; choose another name",
                          {.file = storage.display_path(name)});
  }
  if (overwrite) return true;
  const std::size_t entries = storage.list(name).size();
  if (entries > 0) {
    throw CheckpointError(ErrorCode::kAlreadyExists,
                          str_format("refusing to replace the directory: it holds {}; "
                                     "choose another name, or allow overwriting",
                                     counted(entries, "entry", "entries")),
                          {.file = storage.display_path(name)});
  }
  return true;
}

void sync_tree(Storage& storage, const std::string& directory) {
  for (const FileInfo& entry : storage.list(directory)) {
    if (entry.kind == FileInfo::Kind::kDirectory)
      sync_tree(storage, join_name(directory, entry.name));  // names end at kMaxNameDepth
  }
  storage.sync_directory(directory);
}

/// Step 5 and undoing it.
class DirectorySwap {
 public:
  DirectorySwap(Storage& storage, const std::string& name, const std::string& staging,
                const std::string& aside)
      : storage_(storage), name_(name), staging_(staging), aside_(aside) {}

  /// 5a
  void move_in() {
    stage_ = Stage::kMoving;
    storage_.rename(staging_, name_);
  }

  /// 5b, or 5c. Returns where the old directory is now.
  const std::string& displace() {
    stage_ = Stage::kExchanging;
    try {
      storage_.exchange(staging_, name_);
      stage_ = Stage::kExchanged;
      return staging_;
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
    }
    stage_ = Stage::kSettingAside;
    storage_.rename(name_, aside_);
    storage_.rename(staging_, name_);
    return aside_;
  }

  /// Looks at what is there, since an operation that reported an error may have had its effect.
  void undo() {
    switch (stage_) {
      case Stage::kNothing: return;
      case Stage::kExchanging:
        throw CheckpointError(ErrorCode::kIo,
                              "it is not known whether the directories were exchanged");
      case Stage::kExchanged: storage_.exchange(staging_, name_); return;
      case Stage::kMoving:
      case Stage::kSettingAside:
        if (!storage_.stat(staging_) && storage_.stat(name_)) storage_.rename(name_, staging_);
        if (stage_ == Stage::kSettingAside && storage_.stat(aside_) && !storage_.stat(name_))
          storage_.rename(aside_, name_);
    }
  }

 private:
  enum class Stage { kNothing, kMoving, kExchanging, kExchanged, kSettingAside };

  Storage& storage_;
  const std::string& name_;
  const std::string& staging_;
  const std::string& aside_;
  Stage stage_ = Stage::kNothing;
};

std::string random_token() {
  std::random_device device;
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%08x%08x", device(), device());
  return text.data();
}

}  // namespace

std::string to_string(const HiddenSibling& sibling) {
  return str_format(".{}.{}-{}", sibling.name, sibling.purpose, sibling.token);
}

std::optional<HiddenSibling> parse_hidden_sibling(std::string_view component) {
  static constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  for (std::size_t dot = component.find('.', 1);
       component.starts_with('.') && dot != std::string_view::npos;
       dot = component.find('.', dot + 1)) {
    const std::size_t dash = component.find_first_not_of(kLetters, dot + 1);
    if (dot == 1 || dash == std::string_view::npos || dash == dot + 1 || component[dash] != '-' ||
        dash + 1 == component.size())
      continue;
    return HiddenSibling{std::string(component.substr(1, dot - 1)),
                         std::string(component.substr(dot + 1, dash - dot - 1)),
                         std::string(component.substr(dash + 1))};
  }
  return std::nullopt;
}

Publication Publication::begin(std::shared_ptr<Storage> storage, std::string name,
                               const std::string& token, Options options) {
  Publication publication(std::move(storage), std::move(name), token, std::move(options));
  Storage& files = *publication.storage_;
  must_replace(files, publication.name_, publication.options_.overwrite);        // 1
  if (files.stat(publication.staging_)) files.remove_all(publication.staging_);  // 2
  files.make_directory(publication.staging_);
  publication.open_ = true;
  return publication;
}

Publication Publication::adopt(std::shared_ptr<Storage> storage, std::string name,
                               const std::string& left, const std::string& token, Options options) {
  Publication publication(std::move(storage), std::move(name), token, std::move(options));
  Storage& files = *publication.storage_;
  must_replace(files, publication.name_, publication.options_.overwrite);
  const std::string from = join_name(parent_name(publication.name_), left);
  try {
    files.rename(from, publication.staging_);
  } catch (const CheckpointError&) {
    if (files.stat(from)) throw;
    throw CheckpointError(ErrorCode::kAborted,
                          "what was to be resumed is gone: another job goes on with it, or has "
                          "removed it",
                          {.file = files.display_path(from)});
  }
  publication.open_ = true;
  return publication;
}

Publication::Publication(std::shared_ptr<Storage> storage, std::string name,
                         const std::string& token, Options options)
    : storage_(std::move(storage)), name_(std::move(name)), options_(std::move(options)) {
  if (token.empty() || token.find('/') != std::string::npos) {
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format("cannot begin a save: the token {} is empty or holds a slash", quote(token)));
  }
  staging_ = hidden_sibling(name_, "saving", token);
  aside_ = hidden_sibling(name_, "replaced", token);
  interrupted_ = hidden_sibling(name_, "interrupted", token);
}

Publication::Publication(Publication&& other) noexcept
    : storage_(std::move(other.storage_)),
      name_(std::move(other.name_)),
      staging_(std::move(other.staging_)),
      aside_(std::move(other.aside_)),
      interrupted_(std::move(other.interrupted_)),
      options_(std::move(other.options_)),
      open_(std::exchange(other.open_, false)) {}

Publication::~Publication() {
  abandon();
}

void Publication::commit() {
  if (!open_)
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "cannot commit the save: it was committed or abandoned before",
                          {.file = name_});
  const std::string parent = parent_name(name_);
  if (options_.sync) {  // 4
    sync_tree(*storage_, staging_);
    for (std::string above = parent; !above.empty();)
      storage_->sync_directory(above = parent_name(above));
  }
  const bool replaces = must_replace(*storage_, name_, options_.overwrite);
  std::vector<std::string> foreign;
  if (replaces && options_.foreign) foreign = options_.foreign();
  std::string replaced;
  DirectorySwap visible(*storage_, name_, staging_, aside_);
  try {
    if (replaces) {  // 5b, 5c
      replaced = visible.displace();
      must_replace(*storage_, replaced,
                   options_.overwrite);  // an empty directory may have got files meanwhile
    } else {
      visible.move_in();  // 5a
    }
    if (options_.sync) storage_->sync_directory(parent);  // 6
  } catch (...) {
    try {
      visible.undo();
      if (options_.sync) storage_->sync_directory(parent);
    } catch (const std::exception& error) {
      open_ = false;
      log_warning(
          str_format("a failed save could not be undone ({}); look into {} and its hidden siblings "
                     "{} and {}: nothing was removed",
                     error.what(), quote(storage_->display_path(name_)), quote(base_name(staging_)),
                     quote(base_name(aside_))));
    }
    throw;
  }
  open_ = false;
  if (!replaces) return;
  try {
    const std::vector<std::string> kept = move_entries(*storage_, foreign, replaced, name_);  // 7
    if (!kept.empty()) {
      log_warning(str_format("{} was replaced; kept in it what no save had written: {}",
                             quote(storage_->display_path(name_)), quoted_list(kept)));
    }
    storage_->remove_all(replaced);  // 8
  } catch (const std::exception& error) {
    log_warning(str_format("the checkpoint is saved, but the one it replaced is still in {}: {}",
                           quote(storage_->display_path(replaced)), error.what()));
  }
}

void Publication::abandon() noexcept {
  if (!std::exchange(open_, false)) return;
  try {
    if (options_.keep_unfinished)
      storage_->rename(staging_, interrupted_);
    else
      storage_->remove_all(staging_);
  } catch (const std::exception& error) {
    try {
      log_warning("the unfinished save could not be removed or set aside: " +
                  std::string(error.what()));
    } catch (...) {  // no memory for a message: nothing is left to be done
    }
  }
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

StagedFile::StagedFile(Storage& storage, std::string name, ByteView content)
    : storage_(storage),
      name_(std::move(name)),
      temporary_(hidden_sibling(name_, "tmp", random_token())) {
  try {
    const std::unique_ptr<WritableFile> file = storage_.create(temporary_);
    file->append(content);
    file->sync();
    file->close();
  } catch (...) {
    remove();
    throw;
  }
}

void StagedFile::commit() {
  storage_.rename(temporary_, name_);
  open_ = false;
  storage_.sync_directory(parent_name(name_));
}

StagedFile::~StagedFile() {
  remove();
}

void StagedFile::remove() noexcept {
  if (!std::exchange(open_, false)) return;
  try {
    storage_.remove_all(temporary_);
  } catch (const std::exception& error) {
    try {
      log_warning("a temporary file could not be removed: " + std::string(error.what()));
    } catch (...) {  // no memory for a message: nothing is left to be done
    }
  }
}

void write_file_atomically(Storage& storage, const std::string& name, ByteView content) {
  StagedFile(storage, name, content).commit();
}

}  // namespace dckpt
