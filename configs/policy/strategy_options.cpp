#include "configs/policy/strategy_options.h"

#include <utility>

#include "mapping/base/error.h"

namespace dckpt {

std::string_view plug_of(std::string_view field) {
  return field.find(".planner.") == field.npos ? "strategy" : "planner";
}

void refuse_options(const StrategySpec& strategy, const char* field) {
  if (strategy.options.empty()) return;
  throw_error(ErrorCode::kInvalidArgument,
              "{} {} has no options of its own, but {} has {}; what it can be told stands "
              "in {} itself",
              plug_of(field), quote(strategy.name), field, quote(strategy.options.names().front()),
              std::string(field, std::string_view(field).find('.')));
}

void refuse_file_options(const WriteOptions& io, std::string_view why) {
  const WriteOptions usual;
  for (const auto& [field, set] : {std::pair{"page_aligned", io.page_aligned},
                                   {"files_per_rank", io.files_per_rank != usual.files_per_rank}}) {
    if (set) throw_error(ErrorCode::kUnsupported, "save.io.{}: {}; leave it out", field, why);
  }
}

}  // namespace dckpt
