#include "operations/json/reports.h"
#include "operations/json/root_json.h"
#include "operations/json/values.h"
#include "operations/upkeep/fleet.h"
#include "operations/upkeep/treatment.h"

namespace dckpt {
namespace {

Value to_value(const IterationSummary& summary, const RootDiagnosis& diagnosis) {
  return Value::dict({{"directory", summary.directory},
                      {"iteration", or_none(summary.iteration)},
                      {"saved", utc_time(summary.saved)},
                      {"bytes", summary.bytes},
                      {"files", summary.files},
                      {"verdict", name_of(kVerdictNames, verdict_of(summary.state))},
                      {"state", name_of(kIterationStateNames, summary.state)},
                      {"may_be_written", diagnosis.is_written(summary.directory)},
                      {"why", summary.why},
                      {"resumed", summary.resumed},
                      {"tracked", summary.tracked}});
}

Value to_value(const Leftover& leftover) {
  Value json = to_value(leftover.work);
  json["bytes"] = leftover.bytes;
  json["comes_back"] = leftover.comes_back;
  json["in_doubt"] = leftover.in_doubt;
  json["is_old"] = leftover.is_old;
  return json;
}

Value to_value(const SetAside& aside) {
  return Value::dict({{"name", aside.name}, {"original", aside.original}, {"bytes", aside.bytes}});
}

Value to_value(const TreatmentStep& step) {
  return Value::dict({{"kind", name_of(kTreatmentStepNames, step.kind)},
                      {"name", step.name},
                      {"to", step.to},
                      {"why", step.why},
                      {"bytes", step.bytes},
                      {"undo", step.undo}});
}

constexpr auto kAsValue = [](const auto& member) { return to_value(member); };

}  // namespace

std::string to_json(const TreatmentReport& report, const std::string& root) {
  const RootDiagnosis& found = report.diagnosis;
  const auto iteration = [&](const IterationSummary& summary) { return to_value(summary, found); };
  const Value owner = found.owner
                          ? Value::dict({{"name", found.owner->name},
                                         {"state", name_of(kWorkStateNames, found.owner->state)}})
                          : Value();
  return json_text(
      Value::dict({{"root", root},
                   {"ok", found.ok()},
                   {"deep", found.deep},
                   {"iterations", json_list(found.survey.iterations, iteration)},
                   {"tracker", Value::dict({{"file", found.survey.tracker},
                                            {"names", or_none(found.survey.tracked)},
                                            {"problem", found.tracker_problem},
                                            {"bridge_problem", found.bridge_problem}})},
                   {"resume", to_value(report.resume)},
                   {"megatron", Value::dict({{"directory", or_none(found.megatron.directory)},
                                             {"why", found.megatron.why}})},
                   {"owner", owner},
                   {"leftovers", json_list(found.leftovers, kAsValue)},
                   {"set_aside", json_list(found.set_aside, kAsValue)},
                   {"not_counted", json_list(found.not_counted)},
                   {"wasted_bytes", found.wasted_bytes()},
                   {"applied", report.applied},
                   {"steps", json_list(report.steps, kAsValue)},
                   {"remarks", json_list(report.remarks)}}));
}

std::string to_json(const FleetResult& result) {
  return to_json(Value::dict(
             {{"path", result.path},
              {"status", name_of(kFleetStatusNames, result.status)},
              {"ok", result.ok()},
              {"deep", result.deep},
              {"format", result.format},
              {"bytes", result.bytes},
              {"problems", result.problems},
              {"problem", result.ok() ? Value() : Value(result.problem)},
              {"refused", result.refused ? Value(to_string(*result.refused)) : Value()}})) +
         "\n";
}

}  // namespace dckpt
