#include "mapping/base/log.h"

#include <cstdio>
#include <mutex>
#include <utility>

#include "mapping/base/log_silence.h"

namespace dckpt {
namespace {

struct Sink {
  std::mutex mutex;
  LogSink function;
};

// The sink is never destroyed: background threads may log while the process ends.
Sink& sink() {
  static Sink* const instance = new Sink;
  return *instance;
}

thread_local int silences = 0;

}  // namespace

LogSilence::LogSilence() noexcept {
  ++silences;
}
LogSilence::~LogSilence() {
  --silences;
}

LogSink set_log_sink(LogSink function) {
  const std::lock_guard lock(sink().mutex);
  return std::exchange(sink().function, std::move(function));
}

void log(LogLevel level, std::string_view message) {
  if (silences > 0) return;
  const std::lock_guard lock(sink().mutex);
  if (sink().function) {
    try {
      sink().function(level, message);
    } catch (...) {  // a sink must not change what one rank of many does
    }
  } else if (level >= LogLevel::kNotice) {
    const char* const kind = level == LogLevel::kError     ? "error: "
                             : level == LogLevel::kWarning ? "warning: "
                                                           : "";
    std::fprintf(stderr, "dckpt: %s%.*s\n", kind, static_cast<int>(message.size()), message.data());
  }
}

}  // namespace dckpt
