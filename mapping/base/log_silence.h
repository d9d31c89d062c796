#pragma once

namespace dckpt {

/// Drops this thread's log messages during its lifetime, because another rank does the same work on
/// the same files and logs it.
class LogSilence {
 public:
  LogSilence() noexcept;
  ~LogSilence();
  LogSilence(const LogSilence&) = delete;
  LogSilence& operator=(const LogSilence&) = delete;
};

}  // namespace dckpt
