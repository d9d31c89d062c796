#define FMT_HEADER_ONLY
#include "mapping/base/format.h"

#include <fmt/format.h>

namespace dckpt::format_detail {

std::string vformat(fmt::string_view text, fmt::format_args args) {
  return fmt::vformat(text, args);
}

}  // namespace dckpt::format_detail
