#include "operations/convert/workers/pool_notes.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/wire_fields.h"

namespace dckpt {
namespace {

constexpr std::string_view kPrefix = ".notes-";
constexpr std::uint64_t kMaxReadBytes = std::uint64_t{256} << 20;  // at a time

/// Returns the message of the record that `bytes` begins with, and the size of the record; empty if
/// the record is incomplete.
std::pair<std::string, std::size_t> first_record(ByteView bytes) try {
  WireReader reader(bytes, "notes");
  const std::uint64_t low = reader.number();
  const std::uint64_t high = reader.number();
  std::string message = reader.text();
  if (fingerprint_of(as_bytes(message)) != Fingerprint{low, high}) return {};
  return {std::move(message), bytes.size() - reader.rest().size()};
} catch (const CheckpointError&) {
  return {};
}

/// Throws CheckpointError (corrupt) for names that are not safe in a storage.
void require_sound(const PoolNote& note) {
  for (const auto& [name, unit] : note.done) {
    name_components(name);
    if (!unit.path.empty()) name_components(unit.path);
  }
  for (const auto& [from, to] : note.renamed) {
    name_components(from);
    name_components(to);
  }
  for (const PublishedFile& file : note.commitment) name_components(file.name);
}

}  // namespace

void PoolNotes::add(PoolNote note) {
  if (!note.facts.empty()) facts = std::move(note.facts);
  for (auto& [name, unit] : note.done) {
    if (!gone.contains({unit.path, unit.modified})) done.emplace(name, std::move(unit));
  }
  for (const auto& [name, unit] : note.gone) {
    gone.emplace(unit.path, unit.modified);
    const auto found = done.find(name);
    if (found != done.end() && gone.contains({found->second.path, found->second.modified}))
      done.erase(found);
  }
  renamed.insert(renamed.end(), note.renamed.begin(), note.renamed.end());
  if (!note.commitment.empty()) commitments.push_back(std::move(note.commitment));
}

Bytes note_record(ByteView message) {
  const Fingerprint print = fingerprint_of(message);
  Bytes record;
  WireWriter writer(record);
  writer.number(print.low);
  writer.number(print.high);
  writer.text(as_text(message));
  return record;
}

std::size_t parse_notes(ByteView bytes, const std::string& file, PoolNotes& notes) try {
  std::size_t complete = 0;
  while (true) {
    const auto [message, size] = first_record(bytes.subspan(complete));
    if (size == 0) return complete;
    auto note = read_message<PoolNote>(as_bytes(message), file);
    require_sound(note);
    notes.add(std::move(note));
    complete += size;
  }
} catch (const CheckpointError& error) {
  throw_error(ErrorCode::kCorrupt, {.file = file},
              "these are no notes of a conversion ({}); stop its workers, "
              "remove their pool (dckpt workers DIR --remove), and start them "
              "again, or convert without --resume",
              error.message());
}

std::string notes_name(const std::string& token, int number) {
  return str_format("{}{}-{}", kPrefix, token, number);
}

bool is_notes(std::string_view name) {
  return name.starts_with(kPrefix);
}

void read_notes(const Storage& pool, std::span<const FileInfo> entries, PoolNotes& notes) {
  for (const FileInfo& entry : entries) {
    if (!is_notes(entry.name) || entry.kind != FileInfo::Kind::kRegular) continue;
    std::uint64_t& read = notes.read[entry.name];
    if (entry.size <= read) continue;
    const auto file = pool.open(entry.name);
    for (std::size_t complete = 1; complete > 0 && read < file->size(); read += complete) {
      Bytes unread(std::min(file->size() - read, kMaxReadBytes));
      file->read(read, unread);
      complete = parse_notes(unread, file->name(), notes);
    }
  }
}

}  // namespace dckpt
