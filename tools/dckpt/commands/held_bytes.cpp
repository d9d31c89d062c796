#include "tools/dckpt/commands/held_bytes.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "operations/inspect/rank_of_file.h"
#include "tools/dckpt/pictures/bars.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

Bar bar_of(std::string name, std::uint64_t bytes) {
  return {std::move(name), static_cast<double>(bytes), human_bytes(bytes)};
}

/// Returns bars by rank, or by file if not every file has a rank.
std::vector<Bar> bars_before(const ConvertReport& report) {
  std::map<int, std::uint64_t> by_rank;
  std::vector<Bar> by_file;
  bool has_ranks = true;
  for (const HeldBytes& file : report.held_before) {
    const std::optional<int> rank = rank_of_file(file.file);
    has_ranks = has_ranks && rank;
    if (rank) by_rank[*rank] += file.bytes;
    by_file.push_back(bar_of(shown(file.file), file.bytes));
  }
  if (!has_ranks) return by_file;
  std::vector<Bar> rows;
  for (const auto& [rank, bytes] : by_rank)
    rows.push_back(bar_of(str_format("rank {}", rank), bytes));
  return rows;
}

}  // namespace

Picture held_bars(const ConvertReport& report, const PictureStyle& style) {
  std::vector<BarGroup> groups = {{"before", bars_before(report)}, {"after"}};
  for (std::size_t rank = 0; rank < report.held_after.size(); ++rank)
    groups[1].bars.push_back(bar_of(str_format("rank {}", rank), report.held_after[rank]));
  return bars(groups, style);
}

void print_held(const ConvertReport& report) {
  const Picture picture = held_bars(report, picture_style());
  if (picture.empty()) return;
  print("\n");
  print(picture);
  print("\n");
}

}  // namespace dckpt::tool
