#pragma once

#include <string_view>

// The files of the folder assets, which CMake puts into the library.

namespace dckpt {

extern const std::string_view kPageSkeleton;  ///< with @POLICY@, @STYLE@, @DATA@ and @SCRIPT@
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace dckpt
