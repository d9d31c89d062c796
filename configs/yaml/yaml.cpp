#include "configs/yaml/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <sstream>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/utf8.h"

namespace dckpt {
namespace {

TextPlace place_of(const YAML::Mark& mark) {
  return {mark.line + 1, mark.column + 1};
}

/// Thrown to end the parsing: the rest cannot be understood, or must not be looked at.
struct Refused {
  TextPlace place;
  std::string message;
};

/// Builds the tree from the parser's events, so that nothing is expanded and depth is known before
/// the parser goes deeper.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(ConfigProblems& problems) : problems_(problems) {}

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1)
      throw Refused{place_of(mark), "a second document starts here; the file must hold one"};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    add(at(mark, YamlNode::Kind::kNull));
  }

  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    refuse(mark, str_format("the anchor {} is refused: anchors and aliases are not supported here; "
                            "write the value where it is used",
                            quote("&" + name, 40)));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark,
           "an alias is refused: anchors and aliases are not supported here; write the value where "
           "it is used");
    add(at(mark, YamlNode::Kind::kRefused));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    check_tag(mark, tag);
    YamlNode node = at(mark, YamlNode::Kind::kText);
    node.text = value;
    node.quoted = tag == kQuotedTag;
    add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    begin(mark, tag, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    begin(mark, tag, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { end(); }

 private:
  static constexpr const char* kPlainTag =
      "?";  // the parser's tag for text without a tag, and for quoted text
  static constexpr const char* kQuotedTag = "!";

  /// A list or map whose end has not been seen.
  struct Open {
    YamlNode node;
    std::optional<YamlNode> key;  ///< waits for its value
    std::map<std::string, TextPlace> seen;
  };

  static YamlNode at(const YAML::Mark& mark, YamlNode::Kind kind) {
    YamlNode node;
    node.kind = kind;
    node.place = place_of(mark);
    return node;
  }

  void refuse(const YAML::Mark& mark, std::string message) {
    problems_.push_back({place_of(mark), std::move(message)});
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == kPlainTag || tag == kQuotedTag) return;
    refuse(mark, str_format("the tag {} is refused: types follow from the field", quote(tag, 80)));
  }

  void begin(const YAML::Mark& mark, const std::string& tag, YamlNode::Kind kind) {
    if (open_.size() == static_cast<std::size_t>(kMaxYamlDepth)) {
      throw Refused{place_of(mark), str_format("nested more than {} levels deep", kMaxYamlDepth)};
    }
    check_tag(mark, tag);
    open_.push_back({at(mark, kind), std::nullopt, {}});
  }

  void end() {
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.values.push_back(std::move(node));
    } else if (!parent.key) {
      check_key(parent, node);
      parent.key = std::move(node);
    } else {
      if (parent.key->kind == YamlNode::Kind::kText) {
        parent.node.keys.push_back(std::move(*parent.key));
        parent.node.values.push_back(std::move(node));
      }
      parent.key.reset();
    }
  }

  /// Checks a key; one that cannot stand becomes kRefused, and its value is left out.
  void check_key(Open& parent, YamlNode& key) {
    if (key.kind == YamlNode::Kind::kRefused) return;
    if (key.kind != YamlNode::Kind::kText) {
      problems_.push_back({key.place, "the name of a field must be text"});
      key.kind = YamlNode::Kind::kRefused;
      return;
    }
    const auto [first, inserted] = parent.seen.emplace(key.text, key.place);
    if (inserted) return;
    problems_.push_back({key.place, str_format("field {} is given twice, first at line {}",
                                               quote(key.text, 80), first->second.line)});
    key.kind = YamlNode::Kind::kRefused;
  }

  ConfigProblems& problems_;
  std::vector<Open> open_;
  YamlNode root_;
  int documents_ = 0;
};

/// Returns the place of byte `at` of the text.
TextPlace place_in(std::string_view text, std::size_t at) {
  TextPlace place{1, 1};
  for (const char c : text.substr(0, at)) {
    ++place.column;
    if (c == '\n') place = {place.line + 1, 1};
  }
  return place;
}

/// Refuses control bytes, which are not YAML; one of them ends the parser's input silently.
void check_bytes(std::string_view text) {
  if (text.size() > kMaxYamlBytes)
    throw Refused{{}, "the file has more than " + human_bytes(kMaxYamlBytes)};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F) {
      throw Refused{place_in(text, i),
                    str_format("a control character ({}); the file must be plain UTF-8 text",
                               quote(text.substr(i, 1)))};
    }
  }
  if (!is_utf8(text)) throw Refused{{}, "the file must be UTF-8 text"};
}

/// Recognizes a word that every YAML reader takes for text.
bool is_bare_word(std::string_view text) {
  constexpr std::array kTaken = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  const auto in_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && text.front() >= 'a' && std::ranges::all_of(text, in_word) &&
         std::ranges::find(kTaken, text) == kTaken.end();
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (const auto [length, code_point] = decode_utf8(text.substr(i), Surrogates::kRefuse);
        length > 1) {
      std::array<char, 8> hex{};
      std::snprintf(hex.data(), hex.size(), "\\u%04x", code_point);
      out += steers_text(code_point) ? std::string_view(hex.data()) : text.substr(i, length);
      i += length - 1;
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 5> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", byte);
      out += hex.data();
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string inline_text(const YamlNode& node) {
  std::string out;
  switch (node.kind) {
    case YamlNode::Kind::kText: return node.quoted ? in_quotes(node.text) : node.text;
    case YamlNode::Kind::kList:
      for (const YamlNode& value : node.values)
        out += (out.empty() ? "" : ", ") + inline_text(value);
      return str_format("[{}]", out);
    case YamlNode::Kind::kMap:
      for (std::size_t i = 0; i < node.keys.size(); ++i)
        out += str_format("{}{}: {}", i == 0 ? "" : ", ", inline_text(node.keys[i]),
                          inline_text(node.values[i]));
      return str_format("{{{}}}", out);
    case YamlNode::Kind::kNull:
    case YamlNode::Kind::kRefused: break;
  }
  return "null";
}

/// Longer lists have one line per item.
constexpr std::size_t kMaxListLine = 400;

void append_lines(const YamlNode& map, const std::string& indent, std::string& out) {
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    out += str_format("{}{}:", indent, inline_text(map.keys[i]));
    if (map.values[i].kind == YamlNode::Kind::kMap && !map.values[i].keys.empty()) {
      out += "\n";
      append_lines(map.values[i], indent + "  ", out);
    } else if (const std::string line = inline_text(map.values[i]);
               map.values[i].kind != YamlNode::Kind::kList || line.size() <= kMaxListLine) {
      out += str_format(" {}\n", line);
    } else {
      out += "\n";
      for (const YamlNode& value : map.values[i].values)
        out += str_format("{}  - {}\n", indent, inline_text(value));
    }
  }
}

}  // namespace

YamlNode YamlNode::plain(std::string text) {
  YamlNode node;
  node.kind = Kind::kText;
  node.text = std::move(text);
  return node;
}

YamlNode YamlNode::string(std::string text) {
  YamlNode node = plain(std::move(text));
  node.quoted = !is_bare_word(node.text);
  return node;
}

YamlNode YamlNode::list(std::vector<YamlNode> values) {
  YamlNode node;
  node.kind = Kind::kList;
  node.values = std::move(values);
  return node;
}

const YamlNode* YamlNode::find(std::string_view key) const noexcept {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].text == key) return &values[i];
  }
  return nullptr;
}

std::optional<YamlNode> parse_yaml(std::string_view text, ConfigProblems& problems) {
  try {
    check_bytes(text);
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Builder builder(problems);
    while (parser.HandleNextDocument(builder)) {
    }
    return builder.take();
  } catch (const Refused& refused) {
    problems.push_back({refused.place, refused.message});
  } catch (const YAML::Exception& error) {
    problems.push_back({error.mark.is_null() ? TextPlace{} : place_of(error.mark),
                        "this is not YAML: " + printable(error.msg)});
  }
  return std::nullopt;
}

std::string to_yaml_text(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kMap) return inline_text(node) + "\n";
  std::string out;
  append_lines(node, "", out);
  return out;
}

}  // namespace dckpt
