#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/lease.h"
#include "strategies/storage/publication_body.h"

// The protocol that makes the directory N a checkpoint in a storage without rename. Files appear
// whole, and the storage lets only one of two writers create a name; its lists may be late. K
// counts from 1.
//
//      step                                                  a crash after it leaves
//   1  refuse if something is at N that may not be          nothing new
//      replaced; files of a dead owner of a claim may be
//   2  claim N: create the first C = `N/.dckpt.saving-K`     N as it was, claimed
//      that can be created, where the owner of each one
//      before has certainly ended; C holds the token and
//      is a lease (lease.h), renewed from here on; refuse
//      as in 1, since another job may have ended
//   3  remove the markers of what is at N, then the rest     N incomplete, claimed
//      but claims and what belongs to somebody else
//   4  write the files into N (the caller)                   the same
//   5  refuse if C was not renewed in time; write the        N complete, claimed
//      marker (the caller)
//   6  remove C                                              N complete
//
// Readers take N for incomplete until step 5 and ignore claims. An owner has ended if its process
// is known to have, or if its claim has not been renewed for the period of the lease. Its claim is
// never removed by the next writer, which creates the claim after it: of two writers that find it,
// one creates the next claim. Old claims are removed with the directory.
//
// A writer that was stopped for longer than the period publishes nothing and leaves everything in N
// as it is, its own claim included: another one may have taken N and even have finished. What it
// still creates between its return and step 5 cannot replace files of the other. From the check in
// step 5 to the marker, a writer relies on being stopped for less than a period: a marker that
// another one has written is not replaced, but one of another format appears beside it. The same
// holds for each removal in step 3: the writer asks its lease before, since no storage removes on
// condition, and after, so that a removal that came too late is an error that names the file. A
// marker that has appeared between steps 1 and 2 is never removed.
//
// If a step before 5 fails otherwise, the written files are removed, and C after them. A replaced
// checkpoint is gone from step 3 on, and a warning says so.

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
    const std::vector<FileInfo> before = markers();
    is_there();  // 1
    storage_->make_directory(name_);
    claim(token);  // 2
    try {
      if (!is_there(number_ > 1)) return;  // another job may have finished one before the claim
      if (!std::ranges::equal(before, markers(), is_unchanged)) {
        throw_error(ErrorCode::kAborted, {.file = storage_->display_path(name_)},
                    "another job has published here since this one began: nothing was "
                    "changed; look at what is there, and save again if it is to be "
                    "replaced");
      }
      if (options_.foreign) foreign_ = options_.foreign();
      if (options_.overwrite) warn();
      clear();  // 3
    } catch (...) {
      release();
      throw;
    }
  }

  void commit(const std::function<void()>& write_marker) override {
    if (options_.sync) sync_tree(*storage_, name_);
    require_mine();
    if (write_marker) write_marker();  // 5
    if (options_.sync) storage_->sync_directory(name_);
    close();
    try {
      release();  // 6
    } catch (const std::exception& error) {
      log_warning(str_format("the checkpoint is saved, but {} is still in it; remove that file: {}",
                             quote(storage_->display_path(claim_of(number_))), error.what()));
    }
  }

  void abandon() override {
    if (!lease_->is_current()) return;  // another writer may have taken the directory
    clear();
    release();
    if (storage_->list(name_).empty() && lease_->is_current()) storage_->remove_all(name_);
  }

 private:
  static bool is_claim(const std::string& entry) { return entry.starts_with(kClaimPrefix); }

  std::vector<FileInfo> markers() const {
    std::vector<FileInfo> found;
    const auto directory = storage_->stat(name_);
    if (!directory || directory->kind != FileInfo::Kind::kDirectory) return found;
    for (const std::string& marker : options_.markers) {
      if (auto file = storage_->stat(join_name(name_, marker))) found.push_back(*std::move(file));
    }
    return found;
  }

  static bool is_unchanged(const FileInfo& a, const FileInfo& b) {
    return a.name == b.name && a.size == b.size && a.modified == b.modified;
  }

  /// Returns true if anything but claims is there. A marker counts even if a late list lacks it.
  /// Throws (already exists) if the content must not be replaced. Where a job that has ended had a
  /// claim, content without a marker is what it had written; `claimed` says so, or else the list.
  bool is_there(std::optional<bool> claimed = {}) const {
    const auto found = storage_->stat(name_);
    if (!found || found->kind != FileInfo::Kind::kDirectory)
      return must_replace(*storage_, name_, options_.overwrite).has_value();
    const std::vector<FileInfo> entries = storage_->list(name_);
    const bool marked = std::ranges::any_of(options_.markers, [&](const std::string& marker) {
      return storage_->stat(join_name(name_, marker)).has_value();
    });
    const bool any = marked || std::ranges::any_of(entries, [](const FileInfo& entry) {
                       return !is_claim(entry.name);
                     });
    if (!claimed)
      claimed =
          std::ranges::any_of(entries, [](const FileInfo& entry) { return is_claim(entry.name); });
    if (any && !options_.overwrite && (marked || !*claimed)) {
      throw_error(ErrorCode::kAlreadyExists, {.file = storage_->display_path(name_)},
                  "refusing to replace the directory: it holds files; choose another "
                  "name, or allow overwriting");
    }
    return any;
  }

  std::string claim_of(int number) const {
    return join_name(name_, kClaimPrefix + std::to_string(number));
  }

  void claim(const std::string& token) {
    for (number_ = 1; number_ <= kMaxClaims; ++number_) {
      lease_ = Lease::take(storage_, claim_of(number_), token, options_.lease, options_.sync);
      if (lease_) return;
      require_ended(token);
    }
    throw_error(ErrorCode::kAborted, {.file = storage_->display_path(name_)},
                "{} jobs have died while they wrote this checkpoint; remove the directory",
                kMaxClaims);
  }

  /// Throws (aborted) unless the owner of the claim number_ has certainly ended.
  void require_ended(const std::string& token) {
    const std::string claim = claim_of(number_);
    const auto file = storage_->open(claim);
    const Bytes content = read_file(*file, kMaxTokenBytes);
    const std::string owner(as_text(content));
    if (options_.has_ended && options_.has_ended(owner)) return;
    const auto age =
        Lease::age(*storage_, claim, join_name(name_, kClaimPrefix + ("time-" + token)));
    if (age && *age >= options_.lease) {
      log_warning(str_format("{} has not renewed its claim to write {} for {} s, so it has died",
                             quote(owner, 80), quote(storage_->display_path(name_)),
                             seconds(*age)));
      return;
    }
    throw_error(
        ErrorCode::kAborted, {.file = storage_->display_path(name_)},
        "another job writes this checkpoint, {}: wait until it has ended; if it has "
        "died, {}",
        quote(owner, 80),
        age ? str_format("its claim ends by itself in {} s", seconds(options_.lease - *age) + 1)
            : "remove " + quote(storage_->display_path(claim)));
  }

  static std::int64_t seconds(Lease::Period period) {
    return std::chrono::duration_cast<std::chrono::seconds>(period).count();
  }

  void require_mine() const {
    if (lease_->is_current()) return;
    throw_error(ErrorCode::kAborted, {.file = storage_->display_path(name_)},
                "the claim to write this checkpoint was not renewed for {} s, as if the process "
                "had been stopped, and another job may be writing it: nothing was published; "
                "save again",
                seconds(options_.lease));
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
    for (const std::string& marker : options_.markers) remove(marker);
    const std::set<std::string> kept(foreign_.begin(), foreign_.end());
    for (const FileInfo& entry : storage_->list(name_)) {
      if (!is_claim(entry.name) && !kept.contains(entry.name)) remove(entry.name);
    }
  }

  /// Leaves a claim that has lapsed: whoever finds it gone would not look for the one after it.
  void release() {
    if (lease_->is_current()) lease_->release();
  }

  void remove(const std::string& entry) {
    require_mine();
    const std::string path = join_name(name_, entry);
    storage_->remove_all(path);
    if (lease_->is_current()) return;
    throw_error(
        ErrorCode::kAborted, {.file = storage_->display_path(path)},
        "the claim to write this checkpoint lapsed while this file was removed, as if the process "
        "had been stopped in between: if another job has written it since, its checkpoint lacks it "
        "now; look at the checkpoint with 'dckpt verify', and save again");
  }

  std::unique_ptr<Lease> lease_;
  int number_ = 0;  ///< of the claim
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
