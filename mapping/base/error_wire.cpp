#include "mapping/base/error_wire.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

namespace dckpt {
namespace {

void write_text(WireWriter& writer, const std::optional<std::string>& text, std::size_t longest) {
  writer.number(text ? 1 : 0);
  if (text) writer.text(std::string_view(*text).substr(0, longest));
}

std::optional<std::string> read_text(WireReader& reader) {
  return reader.number(1) == 0 ? std::nullopt : std::optional(reader.text());
}

}  // namespace

void write_to(WireWriter& writer, const CheckpointError& error, std::size_t longest) {
  const ErrorContext& context = error.context();
  writer.number(static_cast<std::uint64_t>(error.code()));
  write_text(writer, error.message(), longest);
  write_text(writer, context.key, longest);
  write_text(writer, context.file, longest);
  writer.number(context.offset ? *context.offset + 1 : 0);
  writer.number(
      static_cast<std::uint64_t>(std::max<std::int64_t>(context.rank.value_or(-1), -1) + 1));
}

CheckpointError read_error(WireReader& reader) {
  const auto code = std::min(reader.number(), static_cast<std::uint64_t>(ErrorCode::kInternal));
  const std::string message = read_text(reader).value_or("");
  ErrorContext context;
  context.key = read_text(reader);
  context.file = read_text(reader);
  if (const std::uint64_t offset = reader.number()) context.offset = offset - 1;
  if (const std::uint64_t rank = reader.number(std::numeric_limits<int>::max()))
    context.rank = static_cast<int>(rank - 1);
  return {static_cast<ErrorCode>(code), message, context};
}

void read_from(WireReader& reader, std::vector<CheckpointError>& errors) {
  errors.clear();
  for (std::size_t left = reader.count(); left > 0; --left) errors.push_back(read_error(reader));
}

}  // namespace dckpt
