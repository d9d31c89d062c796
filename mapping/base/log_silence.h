#pragma once

namespace dckpt {

/// While it lives, what this thread logs is dropped: another rank does the same work on the same
/// files and says it.
class LogSilence {
 public:
  LogSilence() noexcept;
  ~LogSilence();
  LogSilence(const LogSilence&) = delete;
  LogSilence& operator=(const LogSilence&) = delete;
};

}  // namespace dckpt
