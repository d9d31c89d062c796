#include "configs/policy/rename.h"

#include <re2/re2.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/utf8.h"

namespace dckpt {
namespace {

/// A part of a replacement: text, then a group of the match (if any).
struct Piece {
  std::string text;
  std::optional<std::size_t> group{};
};

struct CompiledRule {
  std::shared_ptr<const RE2> from;
  std::vector<Piece> to;
};

/// The problem of a rule.
struct BadRule {
  std::string message;
};

std::vector<Piece> pieces_of(const std::string& to, std::size_t groups) {
  std::vector<Piece> pieces(1);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] != '\\') {
      pieces.back().text += to[i];
      continue;
    }
    const char next = ++i < to.size() ? to[i] : '\0';
    if (next == '\\') {
      pieces.back().text += next;
    } else if (next >= '0' && next <= '9') {
      const auto group = static_cast<std::size_t>(next - '0');
      if (group > groups) {
        throw BadRule{str_format("'to' refers to group \\{}, but 'from' has {}", group,
                                 groups == 0   ? "no groups"
                                 : groups == 1 ? "only one group"
                                               : str_format("only {} groups", groups))};
      }
      pieces.back().group = group;
      pieces.emplace_back();
    } else {
      throw BadRule{
          "in 'to', a backslash must be followed by a digit (a group of 'from') or a backslash"};
    }
  }
  return pieces;
}

CompiledRule compile(const RenameRule& rule) {
  if (rule.from.empty()) throw BadRule{"'from' is empty; it must be a regular expression"};
  if (rule.from.size() > kMaxRenamePattern || rule.to.size() > kMaxRenamePattern) {
    throw BadRule{str_format("'from' and 'to' may have {} bytes", kMaxRenamePattern)};
  }
  RE2::Options options;
  options.set_log_errors(false);
  auto from = std::make_shared<const RE2>(rule.from, options);
  if (!from->ok()) {
    throw BadRule{
        str_format("'from' is no regular expression: {} (the syntax is RE2's: no back-references, "
                   "no look-ahead or look-behind)",
                   printable(from->error()))};
  }
  const auto groups = static_cast<std::size_t>(from->NumberOfCapturingGroups());
  return {.from = std::move(from), .to = pieces_of(rule.to, groups)};
}

std::string replace_all(const CompiledRule& rule, const std::string& key) {
  std::vector<re2::StringPiece> groups(
      1 + static_cast<std::size_t>(rule.from->NumberOfCapturingGroups()));
  std::string out;
  std::size_t copied = 0;  // the key up to here is in `out`
  std::size_t begin = 0;   // the earliest start of the next match
  while (begin <= key.size() && rule.from->Match(key, begin, key.size(), RE2::UNANCHORED,
                                                 groups.data(), static_cast<int>(groups.size()))) {
    const auto start = static_cast<std::size_t>(groups[0].data() - key.data());
    const std::size_t end = start + groups[0].size();
    out.append(key, copied, start - copied);
    for (const Piece& piece : rule.to) {
      out += piece.text;
      if (piece.group) out.append(groups[*piece.group].data(), groups[*piece.group].size());
    }
    copied = end;
    const Utf8Sequence next = decode_utf8(std::string_view(key).substr(end), Surrogates::kPass);
    begin = end > start ? end : end + std::max<std::size_t>(next.length, 1);
  }
  return out.append(key, copied);
}

void check_length(std::string_view key) {
  if (key.size() <= kMaxRenamedKey) return;
  throw_error(ErrorCode::kUnsupported, {.key = std::string(key.substr(0, kMaxRenamedKey))},
              "keys that are renamed may have {} bytes, this one has {}", grouped(kMaxRenamedKey),
              grouped(key.size()));
}

}  // namespace

struct KeyRenamer::Compiled {
  std::vector<CompiledRule> rules;
};

std::optional<std::string> problem_of(const RenameRule& rule) {
  try {
    compile(rule);
  } catch (const BadRule& bad) {
    return bad.message;
  }
  return std::nullopt;
}

KeyRenamer::KeyRenamer(std::span<const RenameRule> rules) {
  Compiled compiled;
  for (const RenameRule& rule : rules) {
    try {
      compiled.rules.push_back(compile(rule));
    } catch (const BadRule& bad) {
      throw_error(ErrorCode::kInvalidArgument, "cannot rename keys from {} to {}: {}",
                  quote(rule.from), quote(rule.to), bad.message);
    }
  }
  compiled_ = std::make_shared<const Compiled>(std::move(compiled));
}

bool KeyRenamer::empty() const noexcept {
  return compiled_->rules.empty();
}

std::string KeyRenamer::operator()(std::string_view key) const {
  std::string name(key);
  for (const CompiledRule& rule : compiled_->rules) {
    check_length(name);
    name = replace_all(rule, name);
    check_length(name);
  }
  return name;
}

}  // namespace dckpt
