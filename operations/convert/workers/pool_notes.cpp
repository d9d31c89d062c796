#include "operations/convert/workers/pool_notes.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/format.h"
#include "mapping/state/value.h"
#include "operations/convert/noted_json.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr std::string_view kPrefix = ".notes-";
constexpr std::uint64_t kMaxReadBytes = std::uint64_t{256} << 20;  // at a time
constexpr int kMaxCodec = static_cast<int>(StorageCodec::kZstd);

std::string checksum(std::string_view record) {
  const Fingerprint print = fingerprint_of(as_bytes(record));
  return str_format("{}-{}", print.high, print.low);
}

FinishedUnit finished_from(const Value& record) {
  FinishedUnit finished{.path = record.at("path").as_str(),
                        .size = count_from(record.at("size")),
                        .modified = record.at("modified").as_int(),
                        .digest = record.at("digest").as_str(),
                        .places = {},
                        .source_checked = record.at("source_checked").as_bool(),
                        .at = record.at("at").as_int()};
  if (!finished.path.empty()) name_from(record.at("path"));
  for (const Value& place : record.at("places").items()) {
    const auto number = [&](std::size_t index) { return count_from(part(place, index, 4)); };
    if (number(2) > kMaxCodec || number(3) > UINT32_MAX)
      throw CheckpointError(ErrorCode::kCorrupt, "a codec or a checksum is out of range");
    finished.places.push_back({0, number(0), number(1), static_cast<StorageCodec>(number(2)),
                               static_cast<std::uint32_t>(number(3))});
  }
  return finished;
}

void add_record(const Value& record, PoolNotes& notes) {
  if (const Value* facts = record.find("facts")) {
    notes.facts = pairs_from(*facts);
  } else if (const Value* done = record.find("done")) {
    notes.add(name_from(*done), finished_from(record));
  } else if (const Value* gone = record.find("gone")) {
    notes.take_back(gone->as_str(), record.at("path").as_str(), record.at("modified").as_int());
  } else if (const Value* files = record.find("commitment")) {
    std::vector<PublishedFile>& commitment = notes.commitments.emplace_back();
    for (const Value& file : files->items())
      commitment.push_back(
          {name_from(part(file, 0, 3)), count_from(part(file, 1, 3)), part(file, 2, 3).as_int()});
  } else {
    notes.renamed.emplace_back(name_from(record.at("from")), name_from(record.at("to")));
  }
}

}  // namespace

void PoolNotes::add(const std::string& unit, FinishedUnit finished) {
  if (!gone.contains({finished.path, finished.modified})) done.emplace(unit, std::move(finished));
}

void PoolNotes::take_back(const std::string& unit, const std::string& path, std::int64_t modified) {
  gone.emplace(path, modified);
  const auto found = done.find(unit);
  if (found != done.end() && found->second.path == path && found->second.modified == modified)
    done.erase(found);
}

std::string note_of_facts(const ConversionFacts& facts) {
  return to_json(Value::dict({{"facts", to_value(facts)}}));
}

std::string note_of_done(const std::string& unit, const FinishedUnit& finished) {
  ValueList places;
  for (const StorageInfo& place : finished.places)
    places.push_back(
        Value::list({place.offset, place.length, static_cast<int>(place.codec), place.crc}));
  return to_json(Value::dict({{"done", unit},
                              {"path", finished.path},
                              {"size", finished.size},
                              {"modified", finished.modified},
                              {"digest", finished.digest},
                              {"source_checked", finished.source_checked},
                              {"at", finished.at},
                              {"places", Value::list(std::move(places))}}));
}

std::string note_of_gone(const std::string& unit, const FinishedUnit& gone) {
  return to_json(Value::dict({{"gone", unit}, {"path", gone.path}, {"modified", gone.modified}}));
}

std::string note_of_rename(const std::string& from, const std::string& to) {
  return to_json(Value::dict({{"from", from}, {"to", to}}));
}

std::string note_of_commitment(const std::vector<PublishedFile>& files) {
  ValueList list;
  for (const PublishedFile& file : files)
    list.push_back(Value::list({file.name, file.size, file.modified}));
  return to_json(Value::dict({{"commitment", Value::list(std::move(list))}}));
}

std::string note_line(std::string_view record) {
  return str_format("{} {}\n", checksum(record), record);
}

std::size_t parse_notes(std::string_view text, const std::string& file, PoolNotes& notes) try {
  std::size_t begin = 0;
  while (true) {
    const std::size_t space = text.find(' ', begin);
    const std::size_t end = text.find('\n', begin);
    if (end == text.npos || space >= end) return begin;
    const std::string_view record = text.substr(space + 1, end - space - 1);
    if (text.substr(begin, space - begin) != checksum(record)) return begin;
    add_record(parse_json(as_bytes(record), file), notes);
    begin = end + 1;
  }
} catch (const CheckpointError& error) {
  throw CheckpointError(ErrorCode::kCorrupt,
                        str_format("these are no notes of a conversion ({}); stop its workers, "
                                   "remove their pool (dckpt workers DIR --remove), and start them "
                                   "again, or convert without --resume",
                                   error.message()),
                        {.file = file});
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
      complete = parse_notes(as_text(unread), file->name(), notes);
    }
  }
}

}  // namespace dckpt
