#include "dist_checkpointing/planner/foreign_code.h"

#include "mapping/base/error_boundary.h"
#include "mapping/base/text.h"

namespace dckpt {

void throw_as_foreign(const std::string& who, const ErrorContext& context) {
  const CheckpointError error = current_error();
  throw CheckpointError(error.code(), who.empty() ? error.message() : who + ": " + error.message(),
                        error.context(), error.cause())
      .with(context);
}

std::string planner_text(const std::string& name) {
  return name.empty() ? "" : "planner " + quote(name);
}

}  // namespace dckpt
