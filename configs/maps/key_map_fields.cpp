#include "configs/maps/key_map_fields.h"

#include "configs/maps/key_pattern.h"
#include "mapping/base/format.h"

namespace dckpt::config {

bool is_word(std::string_view text) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !text.empty() && text.find_first_not_of(kLetters) == text.npos;
}

Type<std::string> word(const std::string& expected) {
  const Type<std::string> any = text(expected);
  return {[any, expected](const YamlNode& node, const std::string& path, std::string& into,
                          ConfigProblems& problems) {
            if (node.kind == YamlNode::Kind::kText && !is_word(node.text))
              return report_unfit(node, path, expected, problems);
            any.read(node, path, into, problems);
          },
          any.show};
}

Type<std::string> pattern() {
  const Type<std::string> any = text("a key");
  return {[any](const YamlNode& node, const std::string& path, std::string& into,
                ConfigProblems& problems) {
            std::string key;
            any.read(node, path, key, problems);
            if (key.empty()) return;
            if (const auto problem = KeyPattern::problem_of(key))
              problems.push_back({node.place, str_format("{}: {}", path, *problem)});
            else
              into = std::move(key);
          },
          any.show};
}

}  // namespace dckpt::config
