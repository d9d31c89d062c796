#include "operations/page/arguments.h"

#include <algorithm>

#include "mapping/base/format.h"
#include "operations/inspect/extract/render.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr int kDeepest = 12;
constexpr std::size_t kLongest = 400;

using Rows = std::vector<std::pair<std::string, std::string>>;

/// Returns what a rendered value with a tag holds: {"__namespace__": {…}} its fields, and
/// {"__torch.dtype__": "bfloat16"} the text.
const Value& without_tag(const Value& value) {
  if (!value.is_dict() || value.size() != 1) return value;
  const auto& [tag, content] = value.as_dict().items().front();
  return tag.as_str().starts_with("__") && tag.as_str().ends_with("__") ? content : value;
}

/// Returns whether the members have rows of their own: those of dicts, and of lists of dicts, but
/// not the parts of a rendered value with a tag.
bool has_rows(const Value& value) {
  if (value.is_list())
    return std::ranges::any_of(value.items(), [](const Value& item) { return item.is_dict(); });
  return value.is_dict() && value.size() > 0 &&
         !value.as_dict().items().front().first.as_str().starts_with("__");
}

void add_rows(const std::string& path, const Value& tagged, int depth, Rows& rows) {
  if (rows.size() > kMostArguments) return;
  const Value& value = without_tag(tagged);
  if (!has_rows(value) || depth == kDeepest) {
    std::string text = to_json(value);
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
    rows.emplace_back(path, std::move(text));
  } else if (value.is_list()) {
    for (std::size_t i = 0; i < value.size(); ++i)
      add_rows(str_format("{}[{}]", path, i), value.items()[i], depth + 1, rows);
  } else {
    for (const auto& [key, member] : value.as_dict())
      add_rows((path.empty() ? "" : path + ".") + key.as_str(), member, depth + 1, rows);
  }
}

}  // namespace

Rows argument_rows(const Value& common) {
  Rows rows;
  if (common.is_none() || (common.is_dict() && common.size() == 0)) return rows;
  add_rows("", render(common), 0, rows);
  if (rows.size() > kMostArguments) {
    rows.resize(kMostArguments);
    rows.emplace_back("…", "more are left out: dckpt extract PATH --common prints all");
  }
  return rows;
}

}  // namespace dckpt
