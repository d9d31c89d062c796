#include "operations/convert/workers/worker_survey.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {

std::string to_json(const WorkerSurvey& survey) {
  const auto worker = [](const SurveyedWorker& of) {
    return Value::dict({{"host", of.host},
                        {"process", of.process},
                        {"state", std::string(name_of(kWorkerStateNames, of.state))},
                        {"units", json_list(of.units)},
                        {"seconds", of.seconds},
                        {"done", of.done},
                        {"bytes", of.bytes}});
  };
  return json_text(Value::dict({{"destination", survey.destination},
                                {"published", survey.published},
                                {"units", survey.units},
                                {"units_done", survey.units_done},
                                {"bytes", survey.bytes},
                                {"bytes_done", survey.bytes_done},
                                {"seconds", survey.seconds},
                                {"bytes_per_second", survey.bytes_per_second},
                                {"seconds_left", or_none(survey.seconds_left)},
                                {"workers", json_list(survey.workers, worker)}}));
}

}  // namespace dckpt
