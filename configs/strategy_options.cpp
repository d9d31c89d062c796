#include "configs/strategy_options.h"

#include "mapping/base/error.h"
#include "mapping/base/text.h"

namespace dckpt {

void refuse_options(const StrategySpec& strategy, const char* field) {
  if (strategy.options.kind == YamlNode::Kind::kNull || strategy.options.keys.empty()) return;
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        "strategy " + quote(strategy.name) + " has no options of its own, but " +
                            field + " has " + quote(strategy.options.keys.front().text) +
                            "; what it can be told stands in " +
                            std::string(field, std::string_view(field).find('.')) + " itself");
}

}  // namespace dckpt
