#include "mapping/state/value.h"
#include "strategies/formats/json/json.h"
#include "tools/dckpt/grammar/build_info.h"

namespace dckpt::tool {

std::string version_text() {
  const BuildInfo& info = build_info();
  std::string text = "dckpt " + info.version + "\n";
  const auto add = [&](const std::string& name, const std::string& value) {
    constexpr std::size_t kColumn = 12;
    text += "  " + name + std::string(kColumn - name.size(), ' ') + value + "\n";
  };
  add("commit", info.date.empty() ? info.commit : info.commit + " of " + info.date);
  add("compiler", info.compiler);
  add("build", info.build_type);
  for (const auto& [name, value] : info.with) add(name, value);
  return text;
}

std::string version_json() {
  const BuildInfo& info = build_info();
  Value with = Value::dict();
  for (const auto& [name, value] : info.with) with[name] = value;
  return to_json(Value::dict({{"version", info.version},
                              {"commit", info.commit},
                              {"commit_date", info.date},
                              {"compiler", info.compiler},
                              {"build_type", info.build_type},
                              {"with", std::move(with)}}),
                 2) +
         "\n";
}

}  // namespace dckpt::tool
