#include "operations/json/reports.h"

#include "mapping/base/error.h"
#include "operations/inspect/extract/render.h"
#include "operations/json/compare_fields.h"
#include "operations/json/config_fields.h"
#include "operations/json/convert_fields.h"
#include "operations/json/explain_fields.h"
#include "operations/json/inspect_fields.h"
#include "operations/json/transfer_fields.h"
#include "operations/json/upkeep_fields.h"
#include "operations/json/verify_fields.h"
#include "strategies/contract/reader.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

template <HasJsonRecord T>
std::string text_of(const T& report) {
  return json_text(json_value(report));
}

}  // namespace

std::string to_json(const CheckpointSummary& summary, bool with_chunks, const RootSurvey* root,
                    bool with_retention) {
  return text_of(InspectedCheckpoint{&summary, with_chunks, {root, with_retention}});
}

std::string to_json(const Explanation& explanation) {
  return text_of(explanation);
}

std::string to_json(const VerifyReport& report) {
  return text_of(report);
}

std::string to_json(const RootVerification& root) {
  return text_of(root);
}

std::string to_json(const FleetResult& result) {
  return to_json(json_value(result)) + "\n";
}

std::string to_json(const Digests& digests) {
  return text_of(digests);
}

std::string to_json(const StatsReport& report) {
  return text_of(report);
}

std::string to_json(const DiffReport& report) {
  return text_of(report);
}

std::string to_json(const ConvertReport& report, bool dry_run) {
  return text_of(ConvertedCheckpoint{&report, dry_run});
}

std::string to_json(const TreatmentReport& report, const std::string& root) {
  return text_of(TreatedRoot{&root, &report});
}

std::string to_json(const WorkerSurvey& survey) {
  return text_of(survey);
}

std::string to_json(const RemovedTensors& removed, const std::string& path,
                    const std::string& prefix, bool dry_run) {
  return text_of(Removal{&removed, path, prefix, dry_run});
}

std::string to_json(const std::vector<FormatEntry>& formats) {
  return text_of(ListedFormats{&formats});
}

std::string to_json(const TransferPlan& plan) {
  return text_of(plan);
}

std::string object_json(const Value& object) {
  return json_text(render(object));
}

std::string common_json(const Value& common) {
  return object_json(common.is_none() ? Value::dict() : common);
}

std::string objects_json(const CheckpointReader& reader) {
  Value objects = Value::dict();
  for (std::size_t i = 0; i < reader.metadata().objects.size(); ++i) {
    const std::string& key = reader.metadata().objects[i].key;
    objects[key] = with_context({.key = key}, [&] { return render(reader.object(i)); });
  }
  return json_text(objects);
}

}  // namespace dckpt
