#include "operations/inspect/explain.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {
namespace {

Value to_value(const MapRule& rule) {
  Value json = Value::dict({{"name", rule.map}});
  if (!rule.dropped.empty()) {
    json["dropped"] = rule.dropped;
    return json;
  }
  json["row"] = rule.row;
  json["file"] = rule.file;
  json["line"] = rule.line;
  json["from"] = json_list(rule.from);
  json["to"] = json_list(rule.to);
  return json;
}

Value to_value(const ChunkSummary& chunk, bool has_box) {
  Value json =
      Value::dict({{"file", chunk.file}, {"offset", chunk.offset}, {"length", chunk.length}});
  if (has_box) {
    json["offsets"] = json_list(chunk.box.offsets);
    json["sizes"] = json_list(chunk.box.sizes);
  }
  return json;
}

Value to_value(const FileShare& share) {
  return Value::dict({{"file", share.file},
                      {"rank", or_none(share.rank)},
                      {"chunks", share.chunks},
                      {"bytes", share.bytes}});
}

}  // namespace

std::string to_json(const Explanation& explanation) {
  const bool is_tensor = !explanation.is_object;
  Value json = Value::dict({{"key", explanation.key}, {"bytes", explanation.bytes}});
  if (is_tensor) {
    json["dtype"] = to_string(explanation.dtype);
    json["shape"] = json_list(explanation.shape);
    json["flattened"] = explanation.flattened;
    json["stored_shape"] = json_list(explanation.stored_shape);
    json["grid"] = explanation.grid ? json_list(*explanation.grid) : Value();
  }
  json["chunks"] = json_list(explanation.chunks,
                             [&](const ChunkSummary& chunk) { return to_value(chunk, is_tensor); });
  json["files"] =
      json_list(explanation.files, [](const FileShare& share) { return to_value(share); });
  json["related"] = json_list(explanation.related, [](const RelatedEntry& entry) {
    return Value::dict({{"relation", entry.relation}, {"key", entry.key}});
  });
  if (explanation.rule) json["map"] = to_value(*explanation.rule);
  return json_text(json);
}

}  // namespace dckpt
