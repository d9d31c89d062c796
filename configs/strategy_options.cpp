#include "configs/strategy_options.h"

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {

void refuse_options(const StrategySpec& strategy, const char* field) {
  if (strategy.options.kind == YamlNode::Kind::kNull || strategy.options.keys.empty()) return;
  throw CheckpointError(
      ErrorCode::kInvalidArgument,
      str_format("strategy {} has no options of its own, but {} has {}; what it can be told stands "
                 "in {} itself",
                 quote(strategy.name), field, quote(strategy.options.keys.front().text),
                 std::string(field, std::string_view(field).find('.'))));
}

}  // namespace dckpt
