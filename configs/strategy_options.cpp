#include "configs/strategy_options.h"

#include "mapping/base/error.h"
#include "mapping/base/text.h"

namespace dckpt {

void refuse_options(const StrategyName& strategy) {
  if (strategy.options.kind == YamlNode::Kind::kNull || strategy.options.keys.empty()) return;
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        "strategy " + quote(strategy.name) +
                            " has no options of its own, but save.backend.options has " +
                            quote(strategy.options.keys.front().text) +
                            "; what it can be told stands in save itself");
}

}  // namespace dckpt
