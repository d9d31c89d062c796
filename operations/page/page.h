#pragma once

#include <string>

#include "operations/page/page_data.h"

namespace dckpt {

/// Returns the data as JSON that is safe inside a script element: pure ASCII without <, > and &.
/// Control characters, and those that change the direction of text, are visible as \xNN in all
/// texts. The script of the page (assets/data.js) describes the compact columns.
[[nodiscard]] std::string page_json(const PageData& page);

/// Returns the page: one HTML document that loads nothing and runs no other script than its own.
/// The same data gives the same bytes.
[[nodiscard]] std::string page_html(const PageData& page);

}  // namespace dckpt
