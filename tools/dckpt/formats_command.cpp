#include <CLI/CLI.hpp>

#include "mapping/base/text.h"
#include "strategies/registry.h"
#include "tools/dckpt/command.h"
#include "tools/dckpt/exit_code.h"
#include "tools/dckpt/table.h"
#include "tools/dckpt/terminal.h"

namespace dckpt::tool {
namespace {

std::string versions_text(const Format& format) {
  std::string text;
  for (const int version : format.versions) text += (text.empty() ? "" : ", ") + std::to_string(version);
  return text.empty() ? "-" : text;
}

int run_formats(bool json) {
  if (json) {
    ValueList formats;
    for (const Format& format : registered_formats()) {
      formats.push_back(Value::dict({{"name", format.name},
                                     {"versions", Value::list(ValueList(format.versions.begin(), format.versions.end()))},
                                     {"reads", true},
                                     {"writes", format.writes},
                                     {"about", format.about}}));
    }
    print_json(Value::dict({{"formats", Value::list(std::move(formats))}}));
    return kOk;
  }
  Table table({{"NAME"}, {"VERSIONS"}, {"READS"}, {"WRITES"}, {"ABOUT"}}, "");
  for (const Format& format : registered_formats())
    table.add({shown(format.name), versions_text(format), "yes", format.writes ? "yes" : "no", shown(format.about)});
  table.print();
  return kOk;
}

}  // namespace

Command add_formats(CLI::App& program) {
  const auto json = std::make_shared<bool>(false);
  CLI::App& command = *program.add_subcommand("formats", "List the formats that can be read and written");
  command.footer("Example:\n  dckpt formats --json");
  add_json(command, *json);
  return {&command, [json] { return run_formats(*json); }};
}

}  // namespace dckpt::tool
