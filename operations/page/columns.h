#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "mapping/base/bytes.h"
#include "mapping/state/value.h"

// Compact forms for hundreds of thousands of numbers and names in the JSON of a page.

namespace dckpt {

/// Returns RFC 4648's base64, with padding.
std::string base64(ByteView bytes);

/// Numbers one after the other, seven bits a byte, the low ones first (LEB128), as base64.
class NumberColumn {
 public:
  void add(std::uint64_t number);
  void append(std::string_view encoded) { bytes_ += encoded; }
  /// The encoded numbers without base64.
  const std::string& bytes() const noexcept { return bytes_; }
  Value to_value() const { return base64(as_bytes(bytes_)); }

 private:
  std::string bytes_;
};

/// Gives equal texts the same number, from 0 in the order of their first appearance.
class TextTable {
 public:
  std::uint64_t number_of(const std::string& text);
  /// Returns the texts in the order of their numbers.
  Value to_value() const { return Value::list(texts_); }

 private:
  std::unordered_map<std::string, std::uint64_t> numbers_;
  ValueList texts_;
};

/// Names, each as the number of components (between dots) that it shares with the one before it,
/// and the rest. The rests are in a table, as layers repeat them.
class NameColumn {
 public:
  void add(const std::string& name);
  /// Returns {"shared": numbers, "rest": numbers, "rests": texts}.
  Value to_value() const;

 private:
  std::string last_;
  bool empty_ = true;
  NumberColumn shared_;
  NumberColumn rest_;
  TextTable rests_;
};

}  // namespace dckpt
