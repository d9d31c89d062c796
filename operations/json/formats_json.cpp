#include "operations/inspect/formats.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {

std::string to_json(const std::vector<FormatEntry>& formats) {
  const auto format = [](const FormatEntry& entry) {
    return Value::dict({{"name", entry.name},
                        {"versions", json_list(entry.versions)},
                        {"reads", entry.reads},
                        {"writes", entry.writes},
                        {"about", entry.about}});
  };
  return json_text(Value::dict({{"formats", json_list(formats, format)}}));
}

}  // namespace dckpt
