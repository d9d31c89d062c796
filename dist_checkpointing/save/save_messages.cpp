#include "dist_checkpointing/save/save_messages.h"

#include <cstdint>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/wire_fields.h"
#include "mapping/planning/save/replicas.h"
#include "mapping/state/flatten.h"

namespace dckpt {
namespace {

/// Encodes a path. Most paths name their keys: the steps joined by dots.
void encode_path(WireWriter& writer, const std::string& key, const KeyPath& path) {
  writer.text(key == dotted_name(path) ? "" : key);
  writer.number(path.size());
  for (const PathElement& step : path) {
    const auto* const name = std::get_if<std::string>(&step);
    writer.number(name != nullptr ? 0 : 1);
    name != nullptr ? writer.text(*name)
                    : writer.number(static_cast<std::uint64_t>(std::get<std::int64_t>(step)));
  }
}

KeyPaths::value_type decode_path(WireReader& reader) {
  std::string key = reader.text();
  KeyPath path(reader.count());
  for (PathElement& step : path) {
    const bool is_position = reader.number(1) == 1;
    if (is_position)
      step = static_cast<std::int64_t>(reader.number(INT64_MAX));
    else
      step = reader.text();
  }
  if (path.empty() || path.size() > kMaxTreeDepth)
    reader.malformed(str_format("a key lies {} levels deep", path.size()));
  if (key.empty()) key = dotted_name(path);
  return {std::move(key), std::move(path)};
}

}  // namespace

Bytes encode(const RankAssignment& assignment) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.text(assignment.directory);
  writer.text(assignment.save_id);
  writer.text(as_text(assignment.answer));
  write_items(writer, assignment.compared);
  return bytes;
}

RankAssignment decode_assignment(ByteView bytes, std::size_t planned) {
  WireReader reader(bytes, "the assignment from rank 0");
  RankAssignment assignment;
  assignment.directory = reader.text();
  assignment.save_id = reader.text();
  assignment.answer = to_bytes(reader.text());
  assignment.compared = read_items(reader, planned);
  reader.finish();
  return assignment;
}

Bytes encode(const WrittenByRank& written) {
  const auto& [items, digests, paths, report] = written;
  Bytes bytes;
  WireWriter writer(bytes);
  writer.text(as_text(encode(report)));
  write_value(writer, items.files);
  write_value(writer, items.places);
  writer.number(paths.size());
  for (const auto& [key, path] : paths) encode_path(writer, key, path);
  write_value(writer, digests);
  return bytes;
}

WrittenByRank decode_written(ByteView bytes) {
  WireReader reader(bytes, "a rank's list of what it wrote");
  WrittenByRank written;
  const std::string report = reader.text();
  read_value(reader, written.items.files);
  read_value(reader, written.items.places);
  for (const StorageInfo& place : written.items.places) {
    if (place.file >= written.items.files.size())
      reader.malformed("it names a file that is not in the list");
  }
  const std::size_t paths = reader.count();
  for (std::size_t i = 0; i < paths; ++i) written.paths.push_back(decode_path(reader));
  read_value(reader, written.digests);
  reader.finish();
  written.report = decode_rank_report(as_bytes(report));
  return written;
}

}  // namespace dckpt
