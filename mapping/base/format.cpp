#include "mapping/base/format.h"

#include <fmt/args.h>
#include <fmt/format.h>

namespace dckpt::format_detail {

std::string vformat(std::string_view text, std::span<const Arg> args) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  for (const Arg& arg : args) std::visit([&](const auto& value) { store.push_back(value); }, arg);
  return fmt::vformat(text, store);
}

}  // namespace dckpt::format_detail
