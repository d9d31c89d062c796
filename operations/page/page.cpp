#include "operations/page/page.h"

#include <string_view>

#include "mapping/base/hash.h"
#include "operations/page/assets.h"
#include "operations/page/columns.h"

namespace dckpt {
namespace {

/// Returns the source of a content security policy that allows exactly this inline text.
std::string source_of(std::string_view text) {
  Sha256 hash;
  hash.update(as_bytes(text));
  return "'sha256-" + base64(hash.finish()) + "'";
}

}  // namespace

std::string page_html(const PageData& page) {
  const std::string policy = "default-src 'none'; script-src " + source_of(kPageScript) +
                             "; style-src " + source_of(kPageStyle) +
                             "; img-src data:; base-uri 'none'; form-action 'none'";
  std::string html;
  std::string_view rest = kPageSkeleton;
  const auto fill = [&](std::string_view name, std::string_view text) {
    const std::size_t place = rest.find(name);
    html.append(rest.substr(0, place)).append(text);
    rest.remove_prefix(place + name.size());
  };
  fill("@POLICY@", policy);
  fill("@STYLE@", kPageStyle);
  fill("@DATA@", page_json(page));
  fill("@SCRIPT@", kPageScript);
  return html.append(rest);
}

}  // namespace dckpt
