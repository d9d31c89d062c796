#include "operations/convert/noted_copy.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/base/log.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kReadStep = std::uint64_t{1} << 20;

/// Computes one of the two digests of bytes that arrive in pieces.
class Digest {
 public:
  explicit Digest(bool sha256) : sha256_(sha256) {}
  void update(ByteView bytes) {
    if (sha256_)
      sha_.update(bytes);
    else
      crc_ = crc32(bytes, crc_);
  }
  std::string finish() { return sha256_ ? sha_.finish_hex() : std::to_string(crc_); }

 private:
  bool sha256_;
  Sha256 sha_;
  std::uint32_t crc_ = 0;
};

std::string digest_of(const ReadableFile& file, bool sha256) {
  Digest digest(sha256);
  Bytes piece(std::min(file.size(), kReadStep));
  for (std::uint64_t at = 0; at < file.size(); at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), file.size() - at));
    file.read(at, piece);
    digest.update(piece);
  }
  return digest.finish();
}

/// Removes everything in `below`, a folder of `directory`, except notes and `kept`.
void remove_others(Storage& storage, const std::string& directory, const std::string& below,
                   const std::set<std::string>& kept) {
  for (const FileInfo& entry :
       storage.list(below.empty() ? directory : join_name(directory, below))) {
    const std::string name = join_name(below, entry.name);
    const auto in_it = kept.lower_bound(name + "/");
    if (entry.kind == FileInfo::Kind::kDirectory && in_it != kept.end() &&
        in_it->starts_with(name + "/"))
      remove_others(storage, directory, name, kept);
    else if (!kept.contains(name) && !is_notes(name) && name != kPoolNote)
      storage.remove_all(join_name(directory, name));
  }
}

}  // namespace

class NotedCopy::DigestedFile final : public ForwardingFile {
 public:
  DigestedFile(std::unique_ptr<WritableFile> file, std::string name, NotedCopy& copy)
      : ForwardingFile(std::move(file)),
        name_(std::move(name)),
        copy_(copy),
        digest_(copy.manifest_) {}

  void append(std::span<const ByteView> parts) override {
    file_->append(parts);
    for (const ByteView part : parts) digest_.update(part);
  }

  void close() override {
    file_->close();
    const std::lock_guard lock(copy_.mutex_);
    copy_.digests_[name_] = digest_.finish();
  }

 private:
  std::string name_;
  NotedCopy& copy_;
  Digest digest_;
};

class NotedCopy::NotingStorage final : public ForwardingStorage {
 public:
  NotingStorage(std::shared_ptr<Storage> storage, NotedCopy& copy)
      : ForwardingStorage(std::move(storage)), copy_(copy) {}

  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options) override {
    return std::make_unique<DigestedFile>(storage_->create(name, options), name, copy_);
  }

  void rename(const std::string& from, const std::string& to) override {
    const std::size_t skipped = copy_.directory_.size() + 1;
    copy_.pool_.note_rename(from.substr(skipped), to.substr(skipped));
    storage_->rename(from, to);
  }

 private:
  NotedCopy& copy_;
};

NotedCopy::NotedCopy(WorkerPool& pool, std::shared_ptr<Storage> storage, std::string directory,
                     std::string folder, bool manifest)
    : pool_(pool),
      storage_(std::move(storage)),
      directory_(std::move(directory)),
      folder_(std::move(folder)),
      manifest_(manifest),
      noting_(std::make_shared<NotingStorage>(storage_, *this)) {}

std::string NotedCopy::full(const std::string& name) const {
  return join_name(directory_, name);
}

void NotedCopy::wrote(const std::string& file, std::span<const StorageInfo> places,
                      bool source_checked) {
  FinishedUnit unit{.path = join_name(folder_, file)};
  const std::string name = full(unit.path);
  {
    const std::lock_guard lock(mutex_);
    const auto digest = digests_.extract(name);
    if (!digest)
      throw_error(ErrorCode::kInternal, {.file = file},
                  "the strategy says that it has written a file that it has not closed");
    unit.digest = digest.mapped();
  }
  const FileInfo written = storage_->stat(name).value_or(FileInfo{});
  unit.size = written.size;
  unit.modified = written.modified;
  unit.places.assign(places.begin(), places.end());
  unit.source_checked = source_checked;
  pool_.finish(file, std::move(unit));
}

ManifestDigests NotedCopy::digests() const {
  ManifestDigests digests;
  if (!manifest_) return digests;
  for (const auto& [name, unit] : pool_.done()) {
    if (!unit.path.empty()) digests[name] = {unit.digest, unit.size};
  }
  return digests;
}

void NotedCopy::undo_renames() {
  const NamePairs renamed = pool_.renamed();
  for (auto pair = renamed.rbegin(); pair != renamed.rend(); ++pair) {
    const std::string from = full(pair->first);
    const std::string to = full(pair->second);
    if (storage_->stat(from) || !storage_->stat(to)) continue;
    storage_->make_directory(parent_name(from));
    storage_->rename(to, from);
  }
}

/// Returns where the file of a unit is, as it was noted: where it was written, or moved already
/// under the name of the unit; empty if it is nowhere.
std::string NotedCopy::place_of(const std::string& name, const FinishedUnit& unit,
                                Comparison comparison) const {
  for (const std::string& place : {unit.path, name}) {
    const auto found = storage_->stat(full(place));
    if (!found || found->kind != FileInfo::Kind::kRegular || found->size != unit.size) continue;
    if (comparison == Comparison::kTime
            ? found->modified == unit.modified
            : digest_of(*storage_->open(full(place)), manifest_) == unit.digest)
      return place;
  }
  return {};
}

bool NotedCopy::take_over(Comparison comparison, int threads) {
  undo_renames();
  const std::map<std::string, FinishedUnit> done = pool_.done();
  std::vector<std::pair<std::string, FinishedUnit>> units(done.begin(), done.end());
  std::erase_if(units, [](const auto& unit) { return unit.second.path.empty(); });
  std::vector<std::string> places(units.size());
  parallel_for(units.size(), threads, [&](std::size_t i) {
    places[i] = place_of(units[i].first, units[i].second, comparison);
  });
  if (!storage_->stat(directory_)) return false;  // another process has taken it
  std::set<std::string> kept;
  bool all = true;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (!places[i].empty()) {
      kept.insert(places[i]);
      continue;
    }
    log_warning(str_format("{} is not as it was left: it is written anew",
                           quote(storage_->display_path(full(units[i].second.path)))));
    pool_.forget(units[i].first);
    all = false;
  }
  remove_others(*storage_, directory_, "", kept);
  std::set<std::string> folders, made;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::string& name = units[i].first;
    if (places[i].empty() || places[i] == name) continue;
    folders.insert(places[i].substr(0, places[i].find('/')));
    const std::string parent = parent_name(full(name));
    if (parent != directory_ && made.insert(parent).second) storage_->make_directory(parent);
    storage_->rename(full(places[i]), full(name));
  }
  for (const std::string& folder : folders) storage_->remove_all(full(folder));
  return all;
}

}  // namespace dckpt
