#include "operations/json/verify_json.h"

#include <algorithm>

#include "operations/json/reports.h"
#include "operations/json/root_json.h"
#include "operations/json/values.h"

namespace dckpt {
namespace {

Value to_value(const CheckpointError& problem) {
  return Value::dict({{"code", to_string(problem.code())},
                      {"message", problem.message()},
                      {"key", or_none(problem.context().key)},
                      {"file", or_none(problem.context().file)},
                      {"offset", or_none(problem.context().offset)}});
}

Value to_value(const VerifyReport& report) {
  const auto of_deep = [&](std::size_t count) { return report.deep ? Value(count) : Value(); };
  const auto problem = [](const CheckpointError& error) { return to_value(error); };
  return Value::dict({{"ok", report.ok()},
                      {"deep", report.deep},
                      {"format", report.format},
                      {"files", report.files},
                      {"tensors", report.tensors},
                      {"chunks", report.chunks},
                      {"objects", report.objects},
                      {"bytes", report.bytes},
                      {"chunks_without_checksum", of_deep(report.chunks_without_checksum)},
                      {"objects_without_checksum", of_deep(report.objects_without_checksum)},
                      {"manifest_files", report.manifest_files},
                      {"problems", json_list(report.problems, problem)},
                      {"findings", to_value(report.findings)},
                      {"remarks", json_list(messages_of(report.findings))}});
}

}  // namespace

std::string to_json(const VerifyReport& report) {
  return json_text(to_value(report));
}

std::string to_json(const RootVerification& root) {
  const auto is_ok = [](const RootVerification::Checkpoint& checkpoint) {
    return checkpoint.report.ok();
  };
  const auto checkpoint = [](const RootVerification::Checkpoint& verified) {
    Value json = to_value(verified.report);
    json["path"] = verified.path;
    return json;
  };
  return json_text(Value::dict({{"ok", std::ranges::all_of(root.checkpoints, is_ok)},
                                {"deep", root.deep},
                                {"checkpoints", json_list(root.checkpoints, checkpoint)},
                                {"resume", to_value(root.resume)}}));
}

}  // namespace dckpt
