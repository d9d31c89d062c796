#include "configs/policy/separation_hint.h"

#include <algorithm>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

/// Recognizes bytes that mean something in paths on some system, or that no name should have.
bool is_refused(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return c == '/' || c == '\\' || byte < 0x20 || byte == 0x7F;
}

}  // namespace

std::optional<std::string> problem_of_separation_hint(std::string_view hint) {
  const std::string becomes = "; it is the beginning of file names";
  if (hint.size() > kMaxSeparationHint)
    return str_format("has {} bytes, more than the limit of {}{}", grouped(hint.size()),
                      kMaxSeparationHint, becomes);
  if (!is_utf8(hint)) return str_format("{} is not UTF-8{}", quote(hint), becomes);
  if (std::ranges::any_of(hint, is_refused))
    return str_format("{} has a slash, a backslash or a control character{}", quote(hint), becomes);
  return std::nullopt;
}

void check_separation_hint(std::string_view hint) {
  if (const auto problem = problem_of_separation_hint(hint))
    throw_error(ErrorCode::kInvalidArgument, "the separation hint " + *problem);
}

}  // namespace dckpt
