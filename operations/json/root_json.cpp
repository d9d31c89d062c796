#include "operations/json/root_json.h"

#include <array>
#include <ctime>

#include "operations/json/values.h"

namespace dckpt {
namespace {

Value to_value(const IterationSummary& summary, bool with_retention) {
  const bool examined = summary.state != IterationSummary::State::kNotExamined;
  return Value::dict(
      {{"directory", summary.directory},
       {"iteration", or_none(summary.iteration)},
       {"saved", utc_time(summary.saved)},
       {"bytes", examined ? Value(summary.bytes) : Value()},
       {"files", examined ? Value(summary.files) : Value()},
       {"state", name_of(kIterationStateNames, summary.state)},
       {"why", summary.why},
       {"resumed", summary.resumed},
       {"tracked", summary.tracked},
       {"removed_by_policy", with_retention ? Value(summary.removed_by_policy) : Value()}});
}

}  // namespace

Value to_value(const LatestChoice& choice) {
  return Value::dict(
      {{"directory", choice.checkpoint ? Value(choice.checkpoint->directory) : Value()},
       {"why", choice.why},
       {"passed_over", json_list(choice.passed_over)}});
}

Value to_value(const UnfinishedWork& work) {
  return Value::dict({{"name", work.name},
                      {"iteration", work.iteration},
                      {"purpose", work.purpose},
                      {"state", name_of(kWorkStateNames, work.state)},
                      {"saved", utc_time(work.modified)}});
}

void add_survey(Value& json, const RootSurvey& survey, bool with_retention) {
  json["resume"] = to_value(survey.resume);
  json["iterations"] = json_list(survey.iterations, [&](const IterationSummary& summary) {
    return to_value(summary, with_retention);
  });
  json["unfinished"] =
      json_list(survey.unfinished, [](const UnfinishedWork& work) { return to_value(work); });
}

Value utc_time(std::int64_t since_1970) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  if (since_1970 == 0) return {};
  const auto seconds = static_cast<std::time_t>(since_1970 / kSecond);
  std::tm fields{};
  if (::gmtime_r(&seconds, &fields) == nullptr) return "";
  std::array<char, 64> text{};
  return std::string(text.data(),
                     std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &fields));
}

}  // namespace dckpt
