#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mapping/base/bytes.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Limits against hostile input.
struct JsonLimits {
  std::uint64_t max_bytes = std::uint64_t{256} << 20;
  /// The nesting limit of arrays and objects; below Python's own recursion limit.
  std::uint32_t max_depth = 500;
};

/// Reads one JSON document (RFC 8259) into none, bool, int, float, str, list and dict. Stricter
/// than most parsers where they disagree: refuses duplicate keys, a byte order mark, comments, NaN,
/// anything after the document, strings that are not UTF-8, escaped lone surrogates, integers
/// outside 64 bits and floats that overflow. Integers above int64 become Value's big integers.
/// `what` names the text in messages (a file). Throws CheckpointError (corrupt) with the file and,
/// where known, the byte offset.
Value parse_json(ByteView text, const std::string& what, const JsonLimits& limits = {});

/// Reads a document that is a large object and calls `visit` for each of its members, in their
/// order; only one of them is in memory at a time. The caller must check that no key of this
/// outermost object occurs twice. Throws as parse_json() does, and for a document that is not an
/// object.
using JsonMember = std::function<void(const std::string& key, Value value)>;
void visit_json_members(ByteView text, const std::string& what, const JsonMember& visit,
                        const JsonLimits& limits = {});

/// Limits of nesting and size, beyond which to_json refuses a value.
inline constexpr std::uint32_t kMaxJsonOutputDepth = 1000;
inline constexpr std::uint64_t kMaxJsonOutputBytes = std::uint64_t{1} << 30;

/// Writes none, bool, int (any size), finite float, str, list, tuple and dicts with str keys as
/// Python's json.dumps does: pure ASCII, so that nothing in it controls a terminal. Lone surrogates
/// and bytes that are not UTF-8 (0xNN as \udcNN) are escaped as surrogates, so the text is always
/// valid JSON. `indent` > 0 puts every member on a line of its own; 0 gives one line ("a": 1, "b":
/// 2). Ends without a newline. Throws CheckpointError (invalid argument) for any other kind of
/// value (callers render those first), and past the two limits.
std::string to_json(const Value& value, int indent = 0);

}  // namespace dckpt
