#include "strategies/formats/json/json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/utf8.h"

namespace dckpt {
namespace {

using Sax = nlohmann::json_sax<nlohmann::json>;

/// Builds the Value from the events of nlohmann's parser, which keeps its own stack on the heap and
/// checks UTF-8 and the grammar.
class ValueBuilder final : public Sax {
 public:
  /// Passes the document's members to `visit`, if given, instead of building a Value.
  ValueBuilder(const std::string& what, const JsonLimits& limits, const JsonMember* visit = nullptr)
      : what_(what), limits_(limits), visit_(visit) {}

  Value take() { return std::move(root_); }

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(std::int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override { return add(std::uint64_t{value}); }
  bool number_float(number_float_t value, const string_t& token) override {
    if (token.find_first_of(".eE") == string_t::npos)
      fail(str_format("the integer {} does not fit 64 bits", quote(token, 40)));
    return add(double{value});
  }
  bool string(string_t& value) override { return add(Value(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(std::size_t) override { return open(Value(Dict())); }
  bool start_array(std::size_t) override { return open(Value::list()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Frame& frame = frames_.back();
    frame.key = Value(std::move(name));
    if (frame.container.contains(frame.key))
      fail(str_format("the key {} occurs twice in one object", quote(frame.key.as_str())));
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string message = error.what();
    if (const std::size_t prefix = message.find("] "); prefix != std::string::npos)
      message.erase(0, prefix + 2);
    fail(printable(message), position);
  }

 private:
  struct Frame {
    Value container;
    Value key;
  };

  [[noreturn]] void fail(const std::string& message,
                         std::optional<std::uint64_t> position = {}) const {
    throw_error(ErrorCode::kCorrupt, {.file = what_, .offset = position},
                "cannot read JSON: " + message);
  }

  bool add(Value value) {
    if (frames_.empty()) {
      if (visit_ != nullptr && !value.is_dict()) fail("the document is no object");
      root_ = std::move(value);
      return true;
    }
    Frame& frame = frames_.back();
    if (visit_ != nullptr && frames_.size() == 1 && frame.container.is_dict()) {
      (*visit_)(frame.key.as_str(), std::move(value));
      return true;
    }
    if (frame.container.is_dict()) {
      frame.container.mutable_dict().set(std::move(frame.key), std::move(value));
    } else {
      frame.container.mutable_items().push_back(std::move(value));
    }
    return true;
  }

  bool open(Value container) {
    if (frames_.size() >= limits_.max_depth)
      fail(str_format("more than {} nested arrays and objects", limits_.max_depth));
    frames_.push_back({std::move(container), Value()});
    return true;
  }

  bool close() {
    Value done = std::move(frames_.back().container);
    frames_.pop_back();
    return add(std::move(done));
  }

  const std::string& what_;
  const JsonLimits& limits_;
  const JsonMember* visit_;
  std::vector<Frame> frames_;
  Value root_;
};

/// Decodes the code point at the front of `text`. A byte that is not UTF-8 becomes a lone surrogate
/// as in Python's surrogateescape.
Utf8Sequence code_point(std::string_view text) {
  const Utf8Sequence sequence = decode_utf8(text, Surrogates::kPass);
  if (sequence.length > 0) return sequence;
  return {1, 0xDC00u | static_cast<std::uint8_t>(text[0])};
}

class JsonWriter {
 public:
  explicit JsonWriter(int indent) : indent_(indent > 0 ? static_cast<std::size_t>(indent) : 0) {}

  std::string take() { return std::move(out_); }

  void value(const Value& value, std::uint32_t depth = 0) {
    if (depth > kMaxJsonOutputDepth)
      refuse(str_format("more than {} nested containers", kMaxJsonOutputDepth));
    if (out_.size() > kMaxJsonOutputBytes)
      refuse("the text is longer than " + human_bytes(kMaxJsonOutputBytes));
    switch (value.kind()) {
      case Value::Kind::kNone: out_ += "null"; return;
      case Value::Kind::kBool: out_ += value.as_bool() ? "true" : "false"; return;
      case Value::Kind::kInt: out_ += std::to_string(value.as_int()); return;
      case Value::Kind::kBigInt: out_ += value.as_big_int().to_decimal(); return;
      case Value::Kind::kFloat: real(value.as_float()); return;
      case Value::Kind::kStr: text(value.as_str()); return;
      case Value::Kind::kList:
      case Value::Kind::kTuple:
        members('[', ']', value.items(), depth,
                [&](const Value& item) { this->value(item, depth + 1); });
        return;
      case Value::Kind::kDict:
        members('{', '}', value.as_dict().items(), depth, [&](const Dict::Item& item) {
          if (!item.first.is_str())
            refuse(std::string("a dict with a key of kind ") + to_string(item.first.kind()));
          text(item.first.as_str());
          out_ += ": ";
          this->value(item.second, depth + 1);
        });
        return;
      default: refuse(std::string("a value of kind ") + to_string(value.kind()));
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) {
    throw_error(ErrorCode::kInvalidArgument, "cannot write JSON: " + what);
  }

  template <typename Items, typename Write>
  void members(char open, char close, const Items& items, std::uint32_t depth, Write write) {
    out_ += open;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_ += indent_ == 0 ? ", " : ",";
      if (indent_ > 0) line(depth + 1);
      first = false;
      write(item);
    }
    if (indent_ > 0 && !first) line(depth);
    out_ += close;
  }

  void line(std::uint32_t depth) {
    out_ += '\n';
    out_.append(indent_ * depth, ' ');
  }

  /// Writes as Python's repr does: the shortest digits that read back the same, in positional
  /// notation for exponents from -4 to 15.
  void real(double value) {
    if (!std::isfinite(value)) refuse("a float that is not finite");
    const double magnitude = std::fabs(value);
    const bool positional = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
    std::array<char, 40> digits{};
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), value,
                      positional ? std::chars_format::fixed : std::chars_format::scientific)
            .ptr;
    const std::string_view written(digits.data(), static_cast<std::size_t>(end - digits.data()));
    out_ += written;
    if (written.find_first_of(".e") == std::string_view::npos) out_ += ".0";
  }

  void text(std::string_view value) {
    out_ += '"';
    for (std::string_view rest = value; !rest.empty();) {
      const auto [length, code] = code_point(rest);
      rest.remove_prefix(length);
      switch (code) {
        case '"': out_ += "\\\""; break;
        case '\\': out_ += "\\\\"; break;
        case '\b': out_ += "\\b"; break;
        case '\f': out_ += "\\f"; break;
        case '\n': out_ += "\\n"; break;
        case '\r': out_ += "\\r"; break;
        case '\t': out_ += "\\t"; break;
        default:
          if (code >= 0x20 && code < 0x7F) {
            out_ += static_cast<char>(code);
          } else if (code < 0x10000) {
            escape(code);
          } else {
            escape(0xD800 + ((code - 0x10000) >> 10));
            escape(0xDC00 + ((code - 0x10000) & 0x3FF));
          }
      }
    }
    out_ += '"';
  }

  void escape(std::uint32_t unit) {
    static constexpr char kHex[] = "0123456789abcdef";
    out_ += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out_ += kHex[unit >> shift & 0xF];
  }

  std::size_t indent_;
  std::string out_;
};

}  // namespace

namespace {

void parse(ByteView text, const std::string& what, const JsonLimits& limits,
           ValueBuilder& builder) {
  const auto refuse = [&](const std::string& why, std::optional<std::uint64_t> offset) {
    throw_error(ErrorCode::kCorrupt, {.file = what, .offset = offset}, "cannot read JSON: " + why);
  };
  if (text.size() > limits.max_bytes)
    refuse(str_format("{}, more than the limit of {}", human_bytes(text.size()),
                      human_bytes(limits.max_bytes)),
           {});
  const std::string_view characters = as_text(text);
  if (characters.starts_with("\xEF\xBB\xBF")) refuse("it begins with a byte order mark", 0);
  // nlohmann's parser takes a NUL for the end of the text.
  if (const std::size_t nul = characters.find('\0'); nul != std::string_view::npos)
    refuse("it has a NUL byte", nul);
  if (!nlohmann::json::sax_parse(characters.begin(), characters.end(), &builder))
    refuse("the parser gave up", {});
}

}  // namespace

Value parse_json(ByteView text, const std::string& what, const JsonLimits& limits) {
  ValueBuilder builder(what, limits);
  parse(text, what, limits, builder);
  return builder.take();
}

void visit_json_members(ByteView text, const std::string& what, const JsonMember& visit,
                        const JsonLimits& limits) {
  ValueBuilder builder(what, limits, &visit);
  parse(text, what, limits, builder);
}

std::string to_json(const Value& value, int indent) {
  JsonWriter writer(indent);
  writer.value(value);
  return writer.take();
}

}  // namespace dckpt
