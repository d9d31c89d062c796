#include "operations/json/json_record.h"

#include <array>
#include <ctime>

#include "strategies/formats/json/json.h"

namespace dckpt {

Value to_value(const UtcTime& time) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  if (time.since_1970 == 0) return {};
  const auto seconds = static_cast<std::time_t>(time.since_1970 / kSecond);
  std::tm fields{};
  if (::gmtime_r(&seconds, &fields) == nullptr) return "";
  std::array<char, 64> text{};
  return std::string(text.data(),
                     std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &fields));
}

std::string json_text(const Value& report) {
  return to_json(report, 2) + "\n";
}

}  // namespace dckpt
