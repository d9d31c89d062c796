#pragma once

#include <functional>
#include <string_view>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// kNotice is for what every user should see of a successful run: one line per save.
enum class LogLevel { kDebug, kInfo, kNotice, kWarning, kError };

/// Receives every message of the library; called from any thread, one call at a time.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Replaces the sink and returns the previous one. An empty sink is the default, which prints
/// notices, warnings and errors to stderr.
LogSink set_log_sink(LogSink sink);

void log(LogLevel level, std::string_view message);
inline void log_info(std::string_view message) {
  log(LogLevel::kInfo, message);
}
inline void log_notice(std::string_view message) {
  log(LogLevel::kNotice, message);
}
inline void log_warning(std::string_view message) {
  log(LogLevel::kWarning, message);
}

}  // namespace dckpt
