#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "dist_checkpointing/registry.h"
#include "mapping/base/text.h"
#include "tools/dckpt/command.h"
#include "tools/dckpt/exit_code.h"
#include "tools/dckpt/table.h"
#include "tools/dckpt/terminal.h"

namespace dckpt::tool {
namespace {

/// What is known of one name: a backend may be there for reading, for writing, or both.
struct Row {
  std::vector<int> versions{};
  bool reads = false;
  bool writes = false;
  std::string about{};
};

void add_versions(Row& row, std::span<const int> versions) {
  row.versions.insert(row.versions.end(), versions.begin(), versions.end());
  std::ranges::sort(row.versions);
  row.versions.erase(std::unique(row.versions.begin(), row.versions.end()), row.versions.end());
}

/// In the order of the registry.
std::vector<std::pair<std::string, Row>> rows() {
  std::vector<std::pair<std::string, Row>> rows;
  const auto row = [&](const std::string& name) -> Row& {
    const auto found = std::ranges::find(rows, name, &std::pair<std::string, Row>::first);
    return found != rows.end() ? found->second : rows.emplace_back(name, Row{}).second;
  };
  for (const LoadStrategyEntry& strategy : load_strategies()) {
    Row& known = row(strategy.name);
    known.reads = true;
    known.about = strategy.about;
    add_versions(known, strategy.versions);
  }
  for (const SaveStrategyEntry& strategy : save_strategies()) {
    Row& known = row(strategy.name);
    known.writes = true;
    if (known.about.empty()) known.about = strategy.about;
    add_versions(known, {&strategy.version, 1});
  }
  return rows;
}

std::string versions_text(const Row& row) {
  std::string text;
  for (const int version : row.versions)
    text += (text.empty() ? "" : ", ") + std::to_string(version);
  return text.empty() ? "-" : text;
}

int run_formats(bool json) {
  if (json) {
    ValueList formats;
    for (const auto& [name, row] : rows()) {
      formats.push_back(Value::dict(
          {{"name", name},
           {"versions", Value::list(ValueList(row.versions.begin(), row.versions.end()))},
           {"reads", row.reads},
           {"writes", row.writes},
           {"about", row.about}}));
    }
    print_json(Value::dict({{"formats", Value::list(std::move(formats))}}));
    return kOk;
  }
  Table table({{"NAME"}, {"VERSIONS"}, {"READS"}, {"WRITES"}, {"ABOUT"}}, "");
  for (const auto& [name, row] : rows())
    table.add({shown(name), versions_text(row), row.reads ? "yes" : "no", row.writes ? "yes" : "no",
               shown(row.about)});
  table.print();
  return kOk;
}

}  // namespace

Command add_formats(CLI::App& program) {
  const auto json = std::make_shared<bool>(false);
  Parser command(program, "formats", "List the formats that can be read and written");
  command.footer("Example:\n  dckpt formats --json");
  add_json(command, *json);
  return {&command.app(), [json] { return run_formats(*json); }};
}

}  // namespace dckpt::tool
