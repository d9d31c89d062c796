#include "mapping/base/local_path.h"

#include <algorithm>
#include <string_view>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr std::string_view kSeparator = "://";

}  // namespace

std::string_view scheme_of(std::string_view text) {
  const std::string_view scheme = text.substr(0, std::min(text.find(kSeparator), text.size()));
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto belongs = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
  };
  const bool is_scheme = scheme.size() < text.size() && !scheme.empty() &&
                         is_letter(scheme.front()) && std::ranges::all_of(scheme, belongs);
  return is_scheme ? scheme : std::string_view{};
}

std::filesystem::path local_path(const std::filesystem::path& given) {
  const std::string text = given.string();
  const std::string_view scheme = scheme_of(text);
  if (scheme.empty()) return given;
  const std::string_view rest = std::string_view(text).substr(scheme.size() + kSeparator.size());
  if (scheme == "file" && rest.starts_with('/')) return rest;
  throw_error(ErrorCode::kUnsupported, {.file = text},
              "paths with the scheme {} are not supported: give a path of the local file system "
              "(or file:///PATH); object storage has to be mounted",
              quote(text.substr(0, scheme.size() + kSeparator.size())));
}

}  // namespace dckpt
