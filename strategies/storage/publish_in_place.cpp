#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"
#include "strategies/storage/publication_body.h"

// The protocol that makes the directory N a checkpoint in a storage without rename. Files appear
// whole, and the storage lets only one of two writers create a name; its lists may be late. K
// counts from 1.
//
//      step                                                  a crash after it leaves
//   1  refuse if something is at N that may not be replaced  nothing new
//   2  claim N: create the first C = `N/.dckpt.saving-K`     N as it was, claimed
//      that can be created, where the owner of each one
//      before has certainly ended; C holds the token;
//      refuse as in 1, since another job may have ended
//   3  remove the markers of what is at N, then the rest     N incomplete, claimed
//      but claims and what belongs to somebody else
//   4  write the files into N (the caller)                   the same
//   5  write the marker (the caller)                         N complete, claimed
//   6  remove C                                              N complete
//
// Readers take N for incomplete until step 5 and ignore claims. The claim of a writer that has
// ended is never removed by the next writer, which creates the claim after it: of two writers that
// find it, one creates the next claim. Old claims are removed with the directory.
//
// If a step before 5 fails, the written files are removed, and C after them. A replaced checkpoint
// is gone from step 3 on, and a warning says so.

namespace dckpt {
namespace {

constexpr int kMaxClaims = 1000;
constexpr std::uint64_t kMaxTokenBytes = 4096;

class InPlace final : public Publication::Body {
 public:
  InPlace(std::shared_ptr<Storage> storage, std::string name, Publication::Options options)
      : Body(std::move(storage), std::move(name), std::move(options)) {}

  const std::string& staging() const noexcept override { return name_; }

  void begin(const std::string& token) {
    is_there();  // 1
    storage_->make_directory(name_);
    claim(token);  // 2
    try {
      if (!is_there()) return;  // another job may have finished one before the claim
      if (options_.foreign) foreign_ = options_.foreign();
      warn();
      clear();  // 3
    } catch (...) {
      storage_->remove_all(claim_);
      throw;
    }
  }

  void commit(const std::function<void()>& write_marker) override {
    if (options_.sync) sync_tree(*storage_, name_);
    if (write_marker) write_marker();  // 5
    if (options_.sync) storage_->sync_directory(name_);
    close();
    try {
      storage_->remove_all(claim_);  // 6
    } catch (const std::exception& error) {
      log_warning(str_format("the checkpoint is saved, but {} is still in it; remove that file: {}",
                             quote(storage_->display_path(claim_)), error.what()));
    }
  }

  void abandon() override {
    clear();
    storage_->remove_all(claim_);
    if (storage_->list(name_).empty()) storage_->remove_all(name_);
  }

 private:
  static bool is_claim(const std::string& entry) { return entry.starts_with(kClaimPrefix); }

  /// Returns true if anything but claims is there. A marker counts even if a late list lacks it.
  /// Throws (already exists) if the content must not be replaced.
  bool is_there() const {
    const auto found = storage_->stat(name_);
    if (!found || found->kind != FileInfo::Kind::kDirectory)
      return must_replace(*storage_, name_, options_.overwrite);
    const std::vector<FileInfo> entries = storage_->list(name_);
    const bool any =
        std::ranges::any_of(options_.markers,
                            [&](const std::string& marker) {
                              return storage_->stat(join_name(name_, marker)).has_value();
                            }) ||
        std::ranges::any_of(entries, [](const FileInfo& entry) { return !is_claim(entry.name); });
    if (any && !options_.overwrite) {
      throw CheckpointError(ErrorCode::kAlreadyExists,
                            "refusing to replace the directory: it holds files; choose another "
                            "name, or allow overwriting",
                            {.file = storage_->display_path(name_)});
    }
    return any;
  }

  void claim(const std::string& token) {
    for (int number = 1; number <= kMaxClaims; ++number) {
      claim_ = join_name(name_, kClaimPrefix + std::to_string(number));
      if (create_claim(token)) return;
      const auto file = storage_->open(claim_);
      const Bytes content = read_file(*file, kMaxTokenBytes);
      const std::string owner(as_text(content));
      if (options_.has_ended && options_.has_ended(owner)) continue;
      throw CheckpointError(
          ErrorCode::kAborted,
          str_format("another job writes this checkpoint, {}: wait until it has ended; if it is "
                     "known to have died, remove {}",
                     quote(owner, 80), quote(storage_->display_path(claim_))),
          {.file = storage_->display_path(name_)});
    }
    throw CheckpointError(
        ErrorCode::kAborted,
        str_format("{} jobs have died while they wrote this checkpoint; remove the directory",
                   kMaxClaims),
        {.file = storage_->display_path(name_)});
  }

  /// Returns false if the claim exists.
  bool create_claim(const std::string& token) {
    if (storage_->stat(claim_)) return false;
    try {
      const auto file = storage_->create(claim_);
      file->append(as_bytes(token));
      if (options_.sync) file->sync();
      file->close();
      return true;
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kAlreadyExists) throw;  // another job was faster
      return false;
    }
  }

  void warn() const {
    log_warning(str_format(
        "{} is replaced in its place, since this storage cannot rename: there is no checkpoint "
        "until the new one is complete{}",
        quote(storage_->display_path(name_)),
        foreign_.empty() ? std::string()
                         : "; kept in it is what no save had written: " + quoted_list(foreign_)));
  }

  void clear() {
    for (const std::string& marker : options_.markers)
      storage_->remove_all(join_name(name_, marker));
    const std::set<std::string> kept(foreign_.begin(), foreign_.end());
    for (const FileInfo& entry : storage_->list(name_)) {
      if (!is_claim(entry.name) && !kept.contains(entry.name))
        storage_->remove_all(join_name(name_, entry.name));
    }
  }

  std::string claim_;
  std::vector<std::string> foreign_;
};

}  // namespace

std::unique_ptr<Publication::Body> begin_in_place(std::shared_ptr<Storage> storage,
                                                  std::string name, const std::string& token,
                                                  Publication::Options options) {
  auto body = std::make_unique<InPlace>(std::move(storage), std::move(name), std::move(options));
  body->begin(token);
  return body;
}

}  // namespace dckpt
