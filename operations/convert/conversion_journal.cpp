#include "operations/convert/conversion_journal.h"

#include <algorithm>
#include <concepts>
#include <limits>
#include <string_view>

#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/log.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"
#include "mapping/state/value.h"
#include "operations/convert/noted_json.h"
#include "strategies/formats/json/json.h"
#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

constexpr std::string_view kPrefix = ".conversion-";
constexpr std::string_view kSuffix = ".journal";
constexpr std::uint64_t kMaxJournalBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kReadStep = std::uint64_t{1} << 20;
constexpr int kMaxCodec = static_cast<int>(StorageCodec::kZstd);

std::string journal_name(std::size_t attempt) {
  return str_format("{}{}{}", kPrefix, attempt, kSuffix);
}

/// Returns the names of the journals in a directory by attempt.
std::map<std::uint64_t, std::string> journals_in(const Storage& storage,
                                                 const std::string& directory) {
  std::map<std::uint64_t, std::string> found;
  for (const FileInfo& entry : storage.list(directory)) {
    const std::string_view name = entry.name;
    if (entry.kind != FileInfo::Kind::kRegular || !name.starts_with(kPrefix) ||
        !name.ends_with(kSuffix) || name.size() < kPrefix.size() + kSuffix.size())
      continue;
    const auto attempt =
        parse_u64(name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()));
    if (attempt) found.emplace(*attempt, entry.name);
  }
  return found;
}

template <std::unsigned_integral Number>
std::string hex(Number number) {
  Bytes bytes;
  for (int shift = std::numeric_limits<Number>::digits - 8; shift >= 0; shift -= 8)
    bytes.push_back(std::byte(number >> shift));
  return to_hex(bytes);
}

std::string hex(const Fingerprint& fingerprint) {
  return hex(fingerprint.high) + hex(fingerprint.low);
}

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
  std::string finish() { return sha256_ ? sha_.finish_hex() : hex(crc_); }

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

}  // namespace

bool is_journal(std::string_view name) {
  return name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

std::string journal_record(const std::string& name, const FinishedFile& file) {
  ValueList places;
  for (const StorageInfo& place : file.places)
    places.push_back(
        Value::list({place.offset, place.length, static_cast<int>(place.codec), place.crc}));
  return to_json(Value::dict({{"file", name},
                              {"size", file.size},
                              {"digest", file.digest},
                              {"source_checked", file.source_checked},
                              {"modified", file.modified},
                              {"places", Value::list(std::move(places))}}));
}

namespace {

void read_record(const Value& record, JournalContent& content) {
  if (const Value* facts = record.find("facts")) {
    for (auto& fact : pairs_from(*facts)) content.facts.push_back(std::move(fact));
  } else if (const Value* file = record.find("file")) {
    FinishedFile& finished = content.files[name_from(*file)];
    finished = {.size = count_from(record.at("size")),
                .digest = record.at("digest").as_str(),
                .places = {},
                .source_checked = record.at("source_checked").as_bool()};
    if (const Value* modified = record.find("modified"))  // earlier builds did not note it
      finished.modified = static_cast<std::int64_t>(count_from(*modified));
    for (const Value& place : record.at("places").items()) {
      const auto number = [&](std::size_t index) { return count_from(part(place, index, 4)); };
      if (number(2) > kMaxCodec || number(3) > UINT32_MAX)
        throw CheckpointError(ErrorCode::kCorrupt, "a codec or a checksum is out of range");
      finished.places.push_back({0, number(0), number(1), static_cast<StorageCodec>(number(2)),
                                 static_cast<std::uint32_t>(number(3))});
    }
  } else {
    content.renamed.emplace_back(name_from(record.at("from")), name_from(record.at("to")));
  }
}

/// Removes everything in `below`, a folder of `directory`, except the journals and `kept`.
void remove_others_below(Storage& storage, const std::string& directory, const std::string& below,
                         const std::map<std::string, FinishedFile>& kept) {
  for (const FileInfo& entry :
       storage.list(below.empty() ? directory : join_name(directory, below))) {
    const std::string name = join_name(below, entry.name);
    const bool holds_kept = std::ranges::any_of(
        kept, [&](const auto& file) { return file.first.starts_with(name + "/"); });
    if (entry.kind == FileInfo::Kind::kDirectory && holds_kept)
      remove_others_below(storage, directory, name, kept);
    else if (!kept.contains(name) && !is_journal(name))
      storage.remove_all(join_name(directory, name));
  }
}

}  // namespace

std::string journal_line(std::string_view record) {
  return str_format("{} {}\n", hex(fingerprint_of(as_bytes(record))), record);
}

JournalContent parse_journal(ByteView bytes, const std::string& name) try {
  JournalContent content;
  const std::string_view text = as_text(bytes);
  constexpr std::size_t kDigits = 32;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos || end - begin < kDigits + 1) break;
    const std::string_view record = text.substr(begin + kDigits + 1, end - begin - kDigits - 1);
    if (text.substr(begin, kDigits) != hex(fingerprint_of(as_bytes(record)))) break;
    read_record(parse_json(as_bytes(record), name), content);
    begin = end + 1;
  }
  return content;
} catch (const CheckpointError& error) {
  throw CheckpointError(ErrorCode::kCorrupt,
                        str_format("this is no journal of a conversion ({}); remove it, or convert "
                                   "without --resume",
                                   error.message()),
                        {.file = name});
}

std::optional<JournalContent> read_journals(const Storage& storage, const std::string& directory) {
  std::optional<JournalContent> all;
  for (const auto& [attempt, name] : journals_in(storage, directory)) {
    const std::string file = join_name(directory, name);
    JournalContent content =
        parse_journal(read_file(*storage.open(file), kMaxJournalBytes), storage.display_path(file));
    if (content.facts.empty()) continue;  // the attempt ended before it wrote facts
    if (!all) all.emplace();
    all->facts = std::move(content.facts);
    for (auto& [finished, what] : content.files) all->files[finished] = std::move(what);
    all->renamed.insert(all->renamed.end(), content.renamed.begin(), content.renamed.end());
  }
  return all;
}

/// Computes the digest of the bytes written.
class ConversionJournal::NotedFile final : public ForwardingFile {
 public:
  NotedFile(std::unique_ptr<WritableFile> file, std::string name, ConversionJournal& journal)
      : ForwardingFile(std::move(file)),
        name_(std::move(name)),
        journal_(journal),
        digest_(journal.manifest_) {}

  void append(std::span<const ByteView> parts) override {
    file_->append(parts);
    for (const ByteView part : parts) digest_.update(part);
  }

  void close() override {
    file_->close();
    const std::lock_guard lock(journal_.mutex_);
    journal_.closed_[name_] = {file_->position(), digest_.finish()};
  }

 private:
  std::string name_;
  ConversionJournal& journal_;
  Digest digest_;
};

class ConversionJournal::NotingStorage final : public ForwardingStorage {
 public:
  NotingStorage(std::shared_ptr<Storage> storage, ConversionJournal& journal)
      : ForwardingStorage(std::move(storage)), journal_(journal) {}

  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options) override {
    return std::make_unique<NotedFile>(storage_->create(name, options), name, journal_);
  }

  void rename(const std::string& from, const std::string& to) override {
    const std::size_t skipped = journal_.directory_.size() + 1;
    journal_.note_renamed(from.substr(skipped), to.substr(skipped));
    storage_->rename(from, to);
  }

 private:
  ConversionJournal& journal_;
};

ConversionJournal::ConversionJournal(std::shared_ptr<Storage> storage, std::string directory,
                                     const ConversionFacts& facts,
                                     std::map<std::string, FinishedFile> kept, bool manifest,
                                     bool sync, JournalPlace place)
    : storage_(std::move(storage)),
      directory_(std::move(directory)),
      place_(place.storage ? std::move(place) : JournalPlace{storage_, directory_}),
      manifest_(manifest),
      sync_(sync),
      files_(std::move(kept)),
      noting_(std::make_shared<NotingStorage>(storage_, *this)) {
  const auto before = journals_in(*place_.storage, place_.directory);
  const std::uint64_t attempt = before.empty() ? 1 : before.rbegin()->first + 1;
  file_ = place_.storage->create(join_name(place_.directory, journal_name(attempt)),
                                 {.engine = IoEngine::kBuffered});
  note(to_json(Value::dict({{"facts", to_value(facts)}})));
  for (const auto& [name, file] : files_) note(journal_record(name, file));
}

ConversionJournal::~ConversionJournal() = default;

void ConversionJournal::note(const std::string& json) {
  const std::string line = journal_line(json);
  const std::lock_guard lock(mutex_);
  file_->append(as_bytes(line));
  if (sync_) file_->sync();
}

void ConversionJournal::note_renamed(std::string from, std::string to) {
  note(to_json(Value::dict({{"from", from}, {"to", to}})));
  const std::lock_guard lock(mutex_);
  renamed_.emplace_back(std::move(from), std::move(to));
}

NamePairs ConversionJournal::renamed() const {
  const std::lock_guard lock(mutex_);
  return renamed_;
}

std::optional<FinishedFile> ConversionJournal::find(const std::string& file) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(file);
  if (found == files_.end()) return std::nullopt;
  return found->second;
}

void ConversionJournal::wrote(const std::string& file, std::span<const StorageInfo> places,
                              bool source_checked) {
  FinishedFile finished;
  {
    const std::lock_guard lock(mutex_);
    const auto closed = closed_.find(join_name(directory_, file));
    if (closed == closed_.end())
      throw CheckpointError(ErrorCode::kInternal,
                            "the strategy says that it has written a file that it has not closed",
                            {.file = file});
    finished = std::move(closed->second);
    closed_.erase(closed);
  }
  finished.places.assign(places.begin(), places.end());
  finished.source_checked = source_checked;
  note(journal_record(file, finished));
  const std::lock_guard lock(mutex_);
  files_[file] = std::move(finished);
}

ManifestDigests ConversionJournal::digests() const {
  ManifestDigests digests;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, file] : files_) {
    if (manifest_) digests[name] = {file.digest, file.size};
  }
  return digests;
}

void ConversionJournal::remove() {
  file_->close();
  for (const auto& [attempt, name] : journals_in(*place_.storage, place_.directory))
    place_.storage->remove_all(join_name(place_.directory, name));
}

void undo_renames(Storage& storage, const std::string& directory, const NamePairs& renamed) {
  for (auto pair = renamed.rbegin(); pair != renamed.rend(); ++pair) {
    const std::string from = join_name(directory, pair->first);
    const std::string to = join_name(directory, pair->second);
    if (storage.stat(from) || !storage.stat(to)) continue;
    storage.make_directory(parent_name(from));
    storage.rename(to, from);
  }
}

void remove_others(Storage& storage, const std::string& directory,
                   const std::map<std::string, FinishedFile>& kept) {
  remove_others_below(storage, directory, "", kept);
}

std::map<std::string, FinishedFile> keep_finished(Storage& storage, const std::string& directory,
                                                  const JournalContent& journal, bool manifest,
                                                  int threads) {
  undo_renames(storage, directory, journal.renamed);
  std::vector<std::pair<std::string, FinishedFile>> noted(journal.files.begin(),
                                                          journal.files.end());
  std::vector<char> as_noted(noted.size(), 0);
  parallel_for(noted.size(), threads, [&](std::size_t i) {
    const auto& [name, file] = noted[i];
    const std::string path = join_name(directory, name);
    const auto found = storage.stat(path);
    const bool same = found && found->kind == FileInfo::Kind::kRegular &&
                      found->size == file.size &&
                      digest_of(*storage.open(path), manifest) == file.digest;
    as_noted[i] = same ? 1 : 0;
    if (found && !same)
      log_warning(str_format("{} is not as the interrupted conversion left it: it is written anew",
                             quote(storage.display_path(path))));
  });
  std::map<std::string, FinishedFile> kept;
  for (std::size_t i = 0; i < noted.size(); ++i) {
    if (as_noted[i] != 0) kept.insert(std::move(noted[i]));
  }
  remove_others(storage, directory, kept);
  return kept;
}

}  // namespace dckpt
