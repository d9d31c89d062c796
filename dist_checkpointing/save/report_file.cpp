#include "dist_checkpointing/save/report_file.h"

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>

#include "mapping/base/error.h"
#include "mapping/base/fields.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;
constexpr std::uint32_t kMaxReportDepth = 8;
constexpr double kMaxSeconds = 1e9;  // 31 years

/// An object in the file.
class JsonObject {
 public:
  JsonObject(const Value& value, const std::string& file) : value_(value), file_(file) {
    if (!value.is_dict()) corrupt("an object is of kind " + std::string(to_string(value.kind())));
  }

  const Value& at(const std::string& name) const {
    const Value* const field = value_.find(name);
    if (field == nullptr) corrupt(str_format("the field {} is missing", quote(name)));
    return *field;
  }

  void read(const char* name, double& seconds) const {
    const Value& field = at(name);
    seconds = field.is(Value::Kind::kFloat) ? field.as_float()
              : field.is_int()              ? static_cast<double>(field.as_int())
                                            : -1.0;
    if (!(seconds >= 0 && seconds <= kMaxSeconds))
      corrupt(
          str_format("the field {} is no time from 0 to {:.0f} seconds", quote(name), kMaxSeconds));
  }
  template <std::integral Number>
  void read(const char* name, Number& number) const {
    constexpr std::int64_t kLimit =
        std::min<std::uint64_t>(std::numeric_limits<Number>::max(), INT64_MAX);
    const Value& field = at(name);
    if (!field.is_int() || field.as_int() < 0 || field.as_int() > kLimit)
      corrupt(str_format("the field {} is no number from 0 to {}", quote(name), kLimit));
    number = static_cast<Number>(field.as_int());
  }
  void read(const char* name, bool& flag) const {
    const Value& field = at(name);
    if (!field.is(Value::Kind::kBool))
      corrupt(str_format("the field {} is not true or false", quote(name)));
    flag = field.as_bool();
  }
  void read(const char* name, std::string& text) const {
    const Value& field = at(name);
    if (!field.is_str()) corrupt(str_format("the field {} is no string", quote(name)));
    text = field.as_str();
  }
  /// Reads all fields of a record that have names.
  template <HasFields Report>
  void read(Report& report) const {
    for_each_field<Report>([&](const auto& field) {
      if constexpr (requires { read(field.name, report.*field.member); }) {
        if (field.name != nullptr) read(field.name, report.*field.member);
      }
    });
  }

 private:
  [[noreturn]] void corrupt(const std::string& message) const {
    throw_error(ErrorCode::kCorrupt, {.file = file_}, message);
  }

  const Value& value_;
  const std::string& file_;
};

/// Adds all fields of a record that have names.
template <HasFields Report>
void add_fields(Value& json, const Report& report) {
  for_each_field<Report>([&](const auto& field) {
    if constexpr (std::constructible_from<Value, decltype(report.*field.member)>) {
      if (field.name != nullptr) json[Value(field.name)] = Value(report.*field.member);
    }
  });
}

}  // namespace

Value to_value(const SaveReport& report) {
  Value phases = Value::dict();
  for (const auto& [phase, member] : kSavePhases) {
    Value taken = Value::dict();
    add_fields(taken, report.*member);
    phases[Value(std::string(name_of(kPhaseNames, phase)))] = std::move(taken);
  }
  Value json = Value::dict({{"version", kVersion}});
  add_fields(json, report);
  json["phases"] = std::move(phases);
  return json;
}

std::string to_json(const SaveReport& report) {
  return to_json(to_value(report), 2) + "\n";
}

SaveReport read_report(ByteView json, const std::string& file_name) {
  const Value value =
      parse_json(json, file_name, {.max_bytes = kMaxBytes, .max_depth = kMaxReportDepth});
  const JsonObject json_report(value, file_name);
  std::uint64_t version = 0;
  json_report.read("version", version);
  if (version != kVersion)
    throw_error(ErrorCode::kUnsupported, {.file = file_name},
                "the report has version {}; this dckpt reads {}", version, kVersion);
  SaveReport report;
  json_report.read(report);
  const JsonObject phases(json_report.at("phases"), file_name);
  for (const auto& [phase, member] : kSavePhases)
    JsonObject(phases.at(std::string(name_of(kPhaseNames, phase))), file_name).read(report.*member);
  return report;
}

std::optional<SaveReport> find_report(const Storage& storage) {
  if (!storage.stat(kReportFile)) return std::nullopt;
  return read_report(read_file(*storage.open(kReportFile), kMaxBytes),
                     storage.display_path(kReportFile));
}

}  // namespace dckpt
