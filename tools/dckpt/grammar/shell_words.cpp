#include "tools/dckpt/grammar/shell_words.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace dckpt::tool {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n';
}

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Removes $NAME or ${NAME} from the beginning of `text` and returns its value; "$" if it is
/// neither.
std::string take_variable(std::string_view& text) {
  std::string_view rest = text.substr(1);
  const bool braces = rest.starts_with('{');
  if (braces) rest.remove_prefix(1);
  const std::string name(rest.begin(), std::ranges::find_if_not(rest, is_name));
  rest.remove_prefix(name.size());
  const bool ends = !braces || rest.starts_with('}');
  if (name.empty() || !ends) {
    text.remove_prefix(1);
    return "$";
  }
  text = braces ? rest.substr(1) : rest;
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

/// Removes the first word from `text` and returns it.
std::string take_word(std::string_view& text) {
  std::string word;
  char quote = '\0';
  if (text == "~" || text.starts_with("~/")) {
    const char* const home = std::getenv("HOME");
    word = home == nullptr ? "~" : home;
    text.remove_prefix(1);
  }
  while (!text.empty() && (quote != '\0' || !is_blank(text.front()))) {
    const char c = text.front();
    if (c == '$' && quote != '\'') {
      word += take_variable(text);
      continue;
    }
    text.remove_prefix(1);
    if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && !text.empty()) {
      word += text.front();
      text.remove_prefix(1);
    } else {
      word += c;
    }
  }
  return word;
}

}  // namespace

std::vector<std::string> shell_words(std::string_view line) {
  std::vector<std::string> words;
  for (;;) {
    while (!line.empty() && is_blank(line.front())) line.remove_prefix(1);
    words.push_back(take_word(line));
    if (line.empty()) return words;
  }
}

std::string shell_word(std::string_view word) {
  const auto is_plain = [](char c) {
    return is_name(c) || std::string_view("/._-+=:@%,").find(c) != std::string_view::npos;
  };
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; };
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return std::string(word);
  constexpr std::string_view kHex = "0123456789abcdef";
  const bool escapes = std::ranges::any_of(word, is_control);
  std::string text = escapes ? "$'" : "'";
  for (const char c : word) {
    if (is_control(c))
      text += {'\\', 'x', kHex[static_cast<unsigned char>(c) >> 4], kHex[c & 15]};
    else if (c == '\'' || (escapes && c == '\\'))
      text += escapes ? std::string{'\\', c} : "'\\''";
    else
      text += c;
  }
  return text + "'";
}

std::string shell_path(std::string_view path) {
  return shell_word(path.starts_with('-') ? "./" + std::string(path) : path);
}

}  // namespace dckpt::tool
