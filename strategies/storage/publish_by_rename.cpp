#include <exception>
#include <optional>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/publication_body.h"

// The protocol that makes the directory N visible. P is the directory that holds it, and S its
// hidden sibling `.N.saving-TOKEN`.
//
//      step                                                  a crash after it leaves
//   1  refuse if something is at N that may not be replaced  nothing new
//   2  remove an S of this token, create S                   N as it was; S, hidden
//   3  write the files into S and sync each, the marker of   the same
//      a complete checkpoint last (the caller)
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
// Step 5b also serves if N is an empty directory, which may be replaced without being asked: if it
// turns out not to be empty after it was moved out of the way, step 5 is undone. Nothing but S is
// ever removed before step 6 has succeeded.
//
// A job that can continue with S after a crash adopts it: it renames S to the S of its own token,
// instead of step 2. The kept files of a failed attempt wait as `.N.interrupted-TOKEN`, which
// nobody writes to.
//
// If a step fails, step 5 is undone and P synced before S is removed: a crash must not find N
// durable and its files gone. If undoing fails too, both directories stay where they are and a
// warning names them.
//
// A process may be stopped before any step, and find the result of a successor under every name
// when it wakes up. Directories are therefore known by their identity (FileInfo::id), not by their
// name: S is the directory that was created or adopted, what step 5 displaces is the directory that
// was found in step 1, and only S is ever moved out of N. A directory that was moved by mistake
// goes back at once. If S or the old directory has become another one, nothing is published
// (aborted).

namespace dckpt {
namespace {

/// Returns whether both are known to be the same directory.
bool is_same(const std::optional<FileInfo>& a, const std::optional<FileInfo>& b) {
  return a && b && a->id != 0 && a->id == b->id;
}

/// Returns false if both are known to be different directories, or if one exists.
bool may_be_same(const std::optional<FileInfo>& a, const std::optional<FileInfo>& b) {
  return a && b ? a->id == b->id : !a && !b;
}

/// Performs and undoes step 5.
class DirectorySwap {
 public:
  /// `mine` describes the directory at `staging`.
  DirectorySwap(Storage& storage, const std::string& name, const std::string& staging,
                const std::string& aside, const FileInfo& mine)
      : storage_(storage), name_(name), staging_(staging), aside_(aside), mine_(mine) {}

  /// Step 5a.
  void move_in() {
    stage_ = Stage::kMoving;
    storage_.rename(staging_, name_);
  }

  /// Step 5b or 5c. Returns the present path of the old directory, `old`.
  const std::string& displace(const FileInfo& old) {
    if (storage_.capabilities().exchange) {
      stage_ = Stage::kExchanging;
      if (storage_.exchange(staging_, name_)) {
        require_same(staging_, old);
        return staging_;
      }
    }
    stage_ = Stage::kSettingAside;
    storage_.rename(name_, aside_);
    require_same(aside_, old);
    storage_.rename(staging_, name_);
    return aside_;
  }

  /// Examines the directories first, since an operation that reported an error may have taken
  /// effect. Afterwards nothing at the staging path belongs to anybody else.
  void undo() {
    switch (stage_) {
      case Stage::kNothing: return;
      case Stage::kExchanging:
        if (is_mine(staging_)) return;
        require_mine_at_name();
        if (!storage_.exchange(staging_, name_))
          throw_error(ErrorCode::kIo, "the directories cannot be exchanged back");
        if (!is_mine(staging_)) {
          (void)storage_.exchange(staging_, name_);
          require_mine_at_name();
        }
        return;
      case Stage::kMoving:
      case Stage::kSettingAside:
        if (is_mine(name_)) take_out();
        if (stage_ == Stage::kSettingAside && storage_.stat(aside_)) put_back();
    }
  }

 private:
  enum class Stage { kNothing, kMoving, kExchanging, kSettingAside };

  /// Tells apart also what a file system gives the number of a removed directory: unlike `id`, the
  /// time of the last change is known everywhere.
  bool is_mine(const std::string& path) const {
    const std::optional<FileInfo> found = storage_.stat(path);
    return is_same(found, mine_) && found->modified == mine_.modified;
  }

  void require_same(const std::string& path, const FileInfo& old) const {
    if (may_be_same(storage_.stat(path), old)) return;
    throw_error(ErrorCode::kAborted, {.file = storage_.display_path(name_)},
                "another job has published here in the meantime: nothing was published");
  }

  void require_mine_at_name() const {
    if (is_mine(name_)) return;
    throw_error(ErrorCode::kIo, "another directory has taken its place");
  }

  void take_out() {
    storage_.rename(name_, staging_);
    if (is_mine(staging_)) return;
    storage_.rename(staging_, name_);
  }

  void put_back() {
    if (!storage_.stat(name_)) return storage_.rename(aside_, name_);
    if (mine_.id == 0) require_mine_at_name();  // nothing tells whose it is: it throws
    log_warning(
        str_format("{} was published by another job in the meantime; what it had been "
                   "before is still in {}",
                   quote(storage_.display_path(name_)), quote(base_name(aside_))));
  }

  Storage& storage_;
  const std::string& name_;
  const std::string& staging_;
  const std::string& aside_;
  const FileInfo mine_;
  Stage stage_ = Stage::kNothing;
};

class ByRename final : public Publication::Body {
 public:
  ByRename(std::shared_ptr<Storage> storage, std::string name, const std::string& token,
           Publication::Options options)
      : Body(std::move(storage), std::move(name), std::move(options)),
        staging_(hidden_sibling(name_, "saving", token)),
        aside_(hidden_sibling(name_, "replaced", token)),
        interrupted_(hidden_sibling(name_, "interrupted", token)) {}

  void create_staging() {
    find_old();                                                    // 1
    if (storage_->stat(staging_)) storage_->remove_all(staging_);  // 2
    storage_->make_directory(staging_);
  }

  void adopt(const std::string& left) {
    find_old();
    const std::string from = join_name(parent_name(name_), left);
    take_up(from);
  }

  void identify_staging() override { mine_ = storage_->stat(staging_); }
  const std::string& staging() const noexcept override { return staging_; }

  void commit(const std::function<void()>& write_marker) override {
    (void)present_staging();
    if (write_marker) write_marker();
    const std::string parent = parent_name(name_);
    if (options_.sync) {  // 4
      sync_tree(*storage_, staging_);
      for (std::string above = parent; !above.empty();)
        storage_->sync_directory(above = parent_name(above));
    }
    const std::optional<FileInfo> old = must_replace(*storage_, name_, options_.overwrite);
    if (old && options_.overwrite && !may_be_same(old, old_)) {
      throw_error(
          ErrorCode::kAborted, {.file = storage_->display_path(name_)},
          "another job has published here since this one began: nothing was published; look at "
          "what is there, and save again if it is to be replaced");
    }
    std::vector<std::string> foreign;
    if (old && options_.foreign) foreign = options_.foreign();
    const std::string replaced = make_visible(old);
    close();
    if (old) remove_replaced(replaced, foreign);
  }

  void abandon() override {
    if (options_.keep_unfinished)
      storage_->rename(staging_, interrupted_);
    else
      storage_->remove_all(staging_);
  }

 private:
  void find_old() {
    old_ = must_replace(*storage_, name_, options_.overwrite);
    if (old_ && options_.may_replace) options_.may_replace(*old_);
  }

  void take_up(const std::string& from) {
    try {
      storage_->rename(from, staging_);
    } catch (const CheckpointError&) {
      if (storage_->stat(from)) throw;
      if (storage_->stat(staging_)) return;  // it took effect: nobody else uses this token
      throw_error(ErrorCode::kAborted, {.file = storage_->display_path(from)},
                  "the interrupted attempt is gone: another job has continued or removed it");
    }
  }

  /// Describes S. Throws (aborted) if it is gone, even if something of its name was made since.
  FileInfo present_staging() const {
    const std::optional<FileInfo> found = storage_->stat(staging_);
    if (found && may_be_same(found, mine_)) return *found;
    throw_error(
        ErrorCode::kAborted, {.file = storage_->display_path(staging_)},
        "another job has removed or taken over what this one had written: nothing was published");
  }

  /// Performs steps 5 and 6. Returns the present path of the replaced directory, `old`.
  std::string make_visible(const std::optional<FileInfo>& old) {
    const std::string parent = parent_name(name_);
    std::string replaced;
    const FileInfo mine = present_staging();
    DirectorySwap visible(*storage_, name_, staging_, aside_, mine);
    try {
      if (old) {  // 5b, 5c
        replaced = visible.displace(*old);
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
        close();
        log_warning(str_format(
            "a failed save could not be undone ({}); look into {} and its hidden siblings "
            "{} and {}: nothing was removed",
            error.what(), quote(storage_->display_path(name_)), quote(base_name(staging_)),
            quote(base_name(aside_))));
      }
      throw;
    }
    return replaced;
  }

  void remove_replaced(const std::string& replaced, const std::vector<std::string>& foreign) {
    try {
      if (!foreign.empty() && !may_be_same(storage_->stat(name_), mine_)) {
        log_warning(
            str_format("{} was published by another job in the meantime; what no save had "
                       "written is still in {}: {}",
                       quote(storage_->display_path(name_)), quote(base_name(replaced)),
                       quoted_list(foreign)));
        return;
      }
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

  const std::string staging_;
  const std::string aside_;  ///< path of the replaced directory if the storage cannot exchange
  const std::string interrupted_;   ///< path of kept unfinished files
  std::optional<FileInfo> old_{};   ///< what was at the name in step 1
  std::optional<FileInfo> mine_{};  ///< S, as it was created or adopted
};

}  // namespace

std::unique_ptr<Publication::Body> begin_by_rename(std::shared_ptr<Storage> storage,
                                                   std::string name, const std::string& left,
                                                   const std::string& token,
                                                   Publication::Options options) {
  auto body =
      std::make_unique<ByRename>(std::move(storage), std::move(name), token, std::move(options));
  if (left.empty())
    body->create_staging();
  else
    body->adopt(left);
  return body;
}

}  // namespace dckpt
