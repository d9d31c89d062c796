#include "mapping/base/error.h"

#include "mapping/base/text.h"

namespace dckpt {
namespace {

std::string render(const std::string& message, const ErrorContext& context) {
  std::string where;
  const auto append = [&](const std::string& part) {
    where += where.empty() ? " [" : ", ";
    where += part;
  };
  const auto append_name = [&](const std::string& what, const std::optional<std::string>& name) {
    if (!name) return;
    const std::string quoted = quote(*name);
    if (message.find(quoted) == std::string::npos) append(what + quoted);  // else it is there
  };
  append_name("key ", context.key);
  append_name("file ", context.file);
  if (context.offset) append("offset " + std::to_string(*context.offset));
  if (context.rank) append("rank " + std::to_string(*context.rank));
  return where.empty() ? message : message + where + "]";
}

}  // namespace

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid-argument";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kIncomplete: return "incomplete";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kAlreadyExists: return "already-exists";
    case ErrorCode::kAborted: return "aborted";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

CheckpointError::CheckpointError(ErrorCode code, const std::string& message, ErrorContext context,
                                 std::exception_ptr cause)
    : std::runtime_error(render(message, context)),
      code_(code),
      message_(message),
      context_(std::move(context)),
      cause_(std::move(cause)) {}

CheckpointError CheckpointError::with(const ErrorContext& context) const {
  ErrorContext merged = context_;
  if (!merged.key) merged.key = context.key;
  if (!merged.file) merged.file = context.file;
  if (!merged.offset) merged.offset = context.offset;
  if (!merged.rank) merged.rank = context.rank;
  return CheckpointError(code_, message_, std::move(merged), cause_);
}

void throw_error(ErrorCode code, std::string_view message) {
  throw CheckpointError(code, std::string(message));
}

void throw_error(ErrorCode code, const ErrorPlace& place, std::string_view message) {
  const auto known = [](std::string_view text) {
    return text.empty() ? std::nullopt : std::optional<std::string>(text);
  };
  throw CheckpointError(code, std::string(message),
                        {known(place.key), known(place.file), place.offset, place.rank});
}

void format_detail::throw_formatted(ErrorCode code, const ErrorPlace& place, std::string_view text,
                                    std::span<const Arg> args) {
  throw_error(code, place, vformat(text, args));
}

}  // namespace dckpt
