#include "dist_checkpointing/save/report_file.h"

#include <limits>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;
constexpr std::uint32_t kMaxReportDepth = 8;
constexpr double kMaxSeconds = 1e9;  // 31 years

/// An object in the file.
class Fields {
 public:
  Fields(const Value& value, const std::string& file) : value_(value), file_(file) {
    if (!value.is_dict()) corrupt("an object is of kind " + std::string(to_string(value.kind())));
  }

  const Value& at(const std::string& name) const {
    const Value* const field = value_.find(name);
    if (field == nullptr) corrupt(str_format("the field {} is missing", quote(name)));
    return *field;
  }

  double seconds(const std::string& name) const {
    const Value& field = at(name);
    const double seconds = field.is(Value::Kind::kFloat) ? field.as_float()
                           : field.is_int()              ? static_cast<double>(field.as_int())
                                                         : -1.0;
    if (!(seconds >= 0 && seconds <= kMaxSeconds))
      corrupt(
          str_format("the field {} is no time from 0 to {:.0f} seconds", quote(name), kMaxSeconds));
    return seconds;
  }

  std::uint64_t number(const std::string& name,
                       std::int64_t limit = std::numeric_limits<std::int64_t>::max()) const {
    const Value& field = at(name);
    if (!field.is_int() || field.as_int() < 0 || field.as_int() > limit)
      corrupt(str_format("the field {} is no number from 0 to {}", quote(name), limit));
    return static_cast<std::uint64_t>(field.as_int());
  }

  bool flag(const std::string& name) const {
    const Value& field = at(name);
    if (!field.is(Value::Kind::kBool))
      corrupt(str_format("the field {} is not true or false", quote(name)));
    return field.as_bool();
  }

  std::string text(const std::string& name) const {
    const Value& field = at(name);
    if (!field.is_str()) corrupt(str_format("the field {} is no string", quote(name)));
    return field.as_str();
  }

 private:
  [[noreturn]] void corrupt(const std::string& message) const {
    throw CheckpointError(ErrorCode::kCorrupt, message, {.file = file_});
  }

  const Value& value_;
  const std::string& file_;
};

}  // namespace

Value to_value(const SaveReport& report) {
  Value phases = Value::dict();
  for (const auto& [phase, member] : kSavePhases) {
    const PhaseReport& taken = report.*member;
    phases[Value(std::string(name_of(kPhaseNames, phase)))] =
        Value::dict({{"seconds", taken.seconds},
                     {"median", taken.median},
                     {"minimum", taken.minimum},
                     {"slowest_rank", static_cast<std::int64_t>(taken.slowest_rank)},
                     {"bytes", taken.bytes}});
  }
  return Value::dict({{"version", kVersion},
                      {"bytes", report.bytes},
                      {"files", report.files},
                      {"seconds", report.seconds},
                      {"plan_cached", report.plan_cached},
                      {"why_planned", report.why_planned},
                      {"engine", report.engine},
                      {"phases", std::move(phases)}});
}

std::string to_json(const SaveReport& report) {
  return to_json(to_value(report), 2) + "\n";
}

SaveReport read_report(ByteView json, const std::string& file_name) {
  const Value value =
      parse_json(json, file_name, {.max_bytes = kMaxBytes, .max_depth = kMaxReportDepth});
  const Fields fields(value, file_name);
  if (const std::uint64_t version = fields.number("version"); version != kVersion)
    throw CheckpointError(
        ErrorCode::kUnsupported,
        str_format("the report has version {}; this dckpt reads {}", version, kVersion),
        {.file = file_name});
  SaveReport report{.bytes = fields.number("bytes"),
                    .files = fields.number("files"),
                    .seconds = fields.seconds("seconds"),
                    .plan_cached = fields.flag("plan_cached"),
                    .why_planned = fields.text("why_planned"),
                    .engine = fields.text("engine")};
  const Fields phases(fields.at("phases"), file_name);
  for (const auto& [phase, member] : kSavePhases) {
    const Fields taken(phases.at(std::string(name_of(kPhaseNames, phase))), file_name);
    report.*member = {.seconds = taken.seconds("seconds"),
                      .median = taken.seconds("median"),
                      .minimum = taken.seconds("minimum"),
                      .slowest_rank = static_cast<int>(
                          taken.number("slowest_rank", std::numeric_limits<int>::max())),
                      .bytes = taken.number("bytes")};
  }
  return report;
}

std::optional<SaveReport> find_report(const Storage& storage) {
  if (!storage.stat(kReportFile)) return std::nullopt;
  return read_report(read_file(*storage.open(kReportFile), kMaxBytes),
                     storage.display_path(kReportFile));
}

}  // namespace dckpt
