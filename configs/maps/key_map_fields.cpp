#include "configs/maps/key_map_fields.h"

#include <utility>

#include "configs/maps/key_pattern.h"
#include "mapping/base/format.h"

namespace dckpt::config {

bool is_word(std::string_view text) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !text.empty() && text.find_first_not_of(kLetters) == text.npos;
}

Type<std::string> word(const char* expected) {
  return text(expected).reading([](const Form& form, const Input& in, std::string& into) {
    if (in.node.kind == YamlNode::Kind::kText && is_word(in.node.text))
      into = in.node.text;
    else
      in.unfit(form.expected);
  });
}

Type<std::string> pattern() {
  return text("a key").reading([](const Form& form, const Input& in, std::string& into) {
    std::string key;
    text(form.expected).read(in, key);
    if (key.empty()) return;
    if (const auto problem = KeyPattern::problem_of(key))
      in.report(*problem);
    else
      into = std::move(key);
  });
}

}  // namespace dckpt::config
