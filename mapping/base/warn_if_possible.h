#pragma once

#include "mapping/base/log.h"

namespace dckpt {

/// Logs the warning that `text` returns, in places that must not throw: destructors, and threads of
/// their own. Without memory for it, nothing is logged.
template <typename Text>
void warn_if_possible(const Text& text) noexcept {
  try {
    log_warning(text());
  } catch (...) {  // nothing else can be done
  }
}

}  // namespace dckpt
