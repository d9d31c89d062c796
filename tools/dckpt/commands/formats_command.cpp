#include <string>
#include <vector>

#include "mapping/base/text.h"
#include "operations/inspect/formats.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

std::string versions_text(const FormatEntry& format) {
  std::string text;
  for (const int version : format.versions)
    text += (text.empty() ? "" : ", ") + std::to_string(version);
  return text.empty() ? "-" : text;
}

int run_formats(bool json) {
  const std::vector<FormatEntry> formats = list_formats();
  if (json) {
    print_json(to_json(formats));
    return kOk;
  }
  Table table({{"NAME"}, {"VERSIONS"}, {"READS"}, {"WRITES"}, {"ABOUT"}}, "");
  for (const FormatEntry& format : formats)
    table.add({shown(format.name), versions_text(format), format.reads ? "yes" : "no",
               format.writes ? "yes" : "no", shown(format.about)});
  table.print();
  return kOk;
}

}  // namespace

Command add_formats(ProgramSpec& program) {
  const auto json = std::make_shared<bool>(false);
  Parser command(program, "formats", "List the formats that can be read and written");
  command.footer("Example:\n  dckpt formats --json");
  add_json(command, *json);
  return {&command.spec(), [json] { return run_formats(*json); }};
}

}  // namespace dckpt::tool
