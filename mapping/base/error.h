#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "mapping/base/api.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

// Failures, and what their messages are made of: str_format (format.h), quote and its neighbors
// (text.h).

namespace DCKPT_API dckpt {

/// The kind of failure, for callers to act on. It decides the exit code of the command line and
/// CheckpointError::retryable(). The values travel between ranks, so new ones go at the end.
enum class ErrorCode {
  kInvalidArgument,  ///< the caller's description or option is wrong
  kMismatch,     ///< request and checkpoint disagree: missing keys, other shapes, failed validation
  kIo,           ///< the operating system reported an error: the message has errno's text
  kCorrupt,      ///< bytes that no sound writer produces, or that no reader should trust
  kIncomplete,   ///< parts of a finished checkpoint are missing
  kUnsupported,  ///< sound, but outside what this build reads or writes
  kCancelled,    ///< the caller asked to stop
  kAlreadyExists,  ///< the destination exists and may not be replaced
  kAborted,        ///< another job is at work in the same place
  kUnavailable,    ///< a time-out, or a peer is gone
  kInternal,       ///< a bug in the library, or in code that was passed in (a strategy, a callback)
};

/// The name used in messages and JSON: "invalid-argument", "mismatch", "io", "corrupt",
/// "incomplete", "unsupported", "cancelled", "already-exists", "aborted", "unavailable",
/// "internal".
const char* to_string(ErrorCode code) noexcept;

/// The place of a failure. Unknown fields stay empty.
struct ErrorContext {
  std::optional<std::string> key{};       ///< tensor or object
  std::optional<std::string> file{};      ///< path or name inside the checkpoint
  std::optional<std::uint64_t> offset{};  ///< byte offset inside the file
  std::optional<int> rank{};
};

/// The one exception type of the library. The message says what was attempted, what was found, what
/// was expected and, where known, what to do; the context is appended to `what()` in brackets. Text
/// from outside must be passed through `quote` (text.h) before it enters a message.
class CheckpointError : public std::runtime_error {
 public:
  CheckpointError(ErrorCode code, const std::string& message, ErrorContext context = {},
                  std::exception_ptr cause = nullptr);

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const ErrorContext& context() const noexcept { return context_; }

  /// Returns whether the same call may succeed later without any correction: (aborted) once the
  /// other job has ended, (unavailable) with a communicator of live ranks. False for (io): an
  /// operation that the system refuses once usually fails again.
  bool retryable() const noexcept {
    return code_ == ErrorCode::kAborted || code_ == ErrorCode::kUnavailable;
  }
  /// The exception that this error reports, for std::rethrow_exception: one of another type, or
  /// that of a failed rank in the same process. Null if there is none. It does not travel to other
  /// processes.
  const std::exception_ptr& cause() const noexcept { return cause_; }

  /// Returns the same error, with missing fields of the context filled in from `context`; for
  /// callers that know more.
  CheckpointError with(const ErrorContext& context) const;

 private:
  ErrorCode code_;
  std::string message_;
  ErrorContext context_;
  std::exception_ptr cause_;
};

/// Runs `body`, and adds the missing fields of `context` to a CheckpointError that it throws.
template <typename Body>
decltype(auto) with_context(const ErrorContext& context, Body&& body) {
  try {
    return body();
  } catch (const CheckpointError& error) {
    throw error.with(context);
  }
}

/// The place of a failure that is about to be thrown: ErrorContext, of texts that need not outlive
/// the call. Empty ones are not known.
struct ErrorPlace {
  std::string_view key{};
  std::string_view file{};
  std::optional<std::uint64_t> offset{};
  std::optional<int> rank{};
};

/// Throws CheckpointError with a message, or with one that is made as str_format makes it:
///
///   throw_error(ErrorCode::kMismatch, {.key = key}, "rank {} is out of range", rank);
///
/// Nothing of it is compiled into the caller but the call.
[[noreturn, gnu::cold]] void throw_error(ErrorCode code, std::string_view message);
[[noreturn, gnu::cold]] void throw_error(ErrorCode code, const ErrorPlace& place,
                                         std::string_view message);

namespace format_detail {
[[noreturn, gnu::cold]] void throw_formatted(ErrorCode code, const ErrorPlace& place,
                                             std::string_view text, std::span<const Arg> args);
}

template <typename... Args>
[[noreturn, gnu::cold, gnu::noinline]] void throw_error(
    ErrorCode code, const ErrorPlace& place,
    std::type_identity_t<format_detail::Text<Args...>> text, const Args&... args) {
  const std::array<format_detail::Arg, sizeof...(Args)> all = {format_detail::arg(args)...};
  format_detail::throw_formatted(code, place, text.view, all);
}

template <typename... Args>
[[noreturn, gnu::cold, gnu::noinline]] void throw_error(
    ErrorCode code, std::type_identity_t<format_detail::Text<Args...>> text, const Args&... args) {
  const std::array<format_detail::Arg, sizeof...(Args)> all = {format_detail::arg(args)...};
  format_detail::throw_formatted(code, {}, text.view, all);
}

}  // namespace dckpt
