#include "operations/inspect/extract/render.h"
#include "operations/inspect/inspect.h"
#include "operations/json/reports.h"
#include "operations/json/root_json.h"
#include "operations/json/values.h"

namespace dckpt {
namespace {

Value to_value(const ChunkSummary& chunk) {
  return Value::dict({{"offsets", json_list(chunk.box.offsets)},
                      {"sizes", json_list(chunk.box.sizes)},
                      {"file", chunk.file},
                      {"offset", chunk.offset},
                      {"length", chunk.length}});
}

Value to_value(const TensorSummary& tensor, bool with_chunks) {
  Value json = Value::dict({{"key", tensor.key},
                            {"dtype", to_string(tensor.dtype)},
                            {"shape", json_list(tensor.shape)},
                            {"bytes", tensor.bytes},
                            {"chunks", tensor.chunk_count},
                            {"flattened", tensor.flattened}});
  if (with_chunks) {
    json["stored_shape"] = json_list(tensor.stored_shape);
    json["chunk_list"] =
        json_list(tensor.chunks, [](const ChunkSummary& chunk) { return to_value(chunk); });
  }
  return json;
}

Value to_value(const FileSummary& file) {
  Value json = Value::dict({{"name", file.name}, {"bytes", file.bytes}});
  if (file.unused) json["unused"] = *file.unused;
  return json;
}

Value to_value(const RunFacts& run) {
  const auto numbers = [](const std::vector<RunFacts::Number>& facts) {
    Value json = Value::dict();
    for (const auto& [name, number] : facts) json[name] = number;
    return json;
  };
  return Value::dict({{"model", numbers(run.model)}, {"parallel", numbers(run.parallel)}});
}

Value data_files_of(const CheckpointSummary& summary) {
  const auto truncated = [](const DataFiles::Truncated& file) {
    return Value::dict({{"name", file.name}, {"bytes", file.bytes}, {"needed", file.needed}});
  };
  return Value::dict({{"needed", summary.data_files.needed},
                      {"missing", json_list(summary.data_files.missing)},
                      {"irregular", json_list(summary.data_files.irregular)},
                      {"truncated", json_list(summary.data_files.truncated, truncated)},
                      {"unreferenced", json_list(summary.unreferenced)}});
}

/// Returns none if ModelOpt has not changed the model.
Value to_value(const std::optional<ModelOptState>& state) {
  if (!state) return {};
  return Value::dict(
      {{"place", state->place}, {"version", state->version}, {"modes", json_list(state->modes)}});
}

/// Returns none if no optimizer state is stored.
Value optimizer_of(const CheckpointSummary& summary) {
  if (!summary.has_optimizer) return {};
  const OptimizerSummary& optimizer = summary.optimizer;
  return Value::dict({{"name", optimizer.name},
                      {"states", json_list(optimizer.states)},
                      {"sharding", optimizer.sharding},
                      {"reshardable", optimizer.reshardable}});
}

Value groups_of(const CheckpointSummary& summary) {
  Value groups = Value::dict();
  for (const auto& [group, name] : kContentGroupNames) {
    const GroupTotal& total = summary.group(group);
    groups[Value(name)] = Value::dict({{"tensors", total.tensors},
                                       {"objects", total.objects},
                                       {"elements", total.elements},
                                       {"bytes", total.bytes}});
  }
  return groups;
}

}  // namespace

std::string to_json(const CheckpointSummary& summary, bool with_chunks, const RootSurvey* root,
                    bool with_retention) {
  const auto tensor = [&](const TensorSummary& entry) { return to_value(entry, with_chunks); };
  const auto object = [](const ObjectSummary& entry) {
    return Value::dict({{"key", entry.key}, {"bytes", entry.bytes}});
  };
  const auto file = [](const FileSummary& entry) { return to_value(entry); };
  Value json = Value::dict(
      {{"format", summary.info.format},
       {"version", or_none(summary.info.version)},
       {"producer", summary.info.producer},
       {"run", to_value(summary.run)},
       {"optimizer", optimizer_of(summary)},
       {"modelopt", to_value(summary.modelopt)},
       {"readers",
        Value::dict({{"model", summary.readers.model}, {"optimizer", summary.readers.optimizer}})},
       {"groups", groups_of(summary)},
       {"tensors", json_list(summary.tensors, tensor)},
       {"objects", json_list(summary.objects, object)},
       {"common", summary.common.is_none() ? Value::dict() : render(summary.common)},
       {"files", json_list(summary.files, file)},
       {"data_files", data_files_of(summary)},
       {"findings", to_value(summary.info.findings)}});
  if (root != nullptr) add_survey(json, *root, with_retention);
  return json_text(json);
}

}  // namespace dckpt
