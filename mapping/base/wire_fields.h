#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/fields.h"
#include "mapping/base/wire.h"

// Messages made from the fields of records, in the order of the list. Integers are LEB128, negative
// ones in 32 bits; bool and enumerations are numbers; double is its bits as a number; text and
// Bytes have their length before them, lists and maps their count; optional is 0, or 1 and the
// value; a pair is both. A type with functions write_to() and read_from() of its own uses these.
namespace DCKPT_API dckpt {

/// The last value of an enumeration that travels: `constexpr E last_of(E)` beside it.
template <typename E>
concept WireEnum = std::is_enum_v<E> && requires(E value) {
  { last_of(value) } -> std::same_as<E>;
};

template <typename T>
void write_value(WireWriter& writer, const T& value);
/// Reads into a value that is as constructed. Throws CheckpointError (corrupt).
template <typename T>
void read_value(WireReader& reader, T& value);

namespace wire_detail {

template <typename T>
concept List = requires(T list) {
  list.emplace_back();
};
template <typename T>
concept Map = requires {
  typename T::mapped_type;
};
template <typename T>
concept Pair = requires(T pair) {
  pair.first;
  pair.second;
};
template <typename T>
concept Optional = std::same_as<T, std::optional<typename T::value_type>>;

}  // namespace wire_detail

template <HasFields T>
void write_fields(WireWriter& writer, const T& record) {
  for_each_field<T>([&](const auto& field) { write_value(writer, record.*field.member); });
}

template <HasFields T>
void read_fields(WireReader& reader, T& record) {
  for_each_field<T>([&](const auto& field) { read_value(reader, record.*field.member); });
}

template <typename T>
void write_value(WireWriter& writer, const T& value) {
  if constexpr (requires { write_to(writer, value); }) {
    write_to(writer, value);
  } else if constexpr (HasFields<T>) {
    write_fields(writer, value);
  } else if constexpr (std::same_as<T, bool>) {
    writer.number(value ? 1 : 0);
  } else if constexpr (WireEnum<T>) {
    writer.number(static_cast<std::uint64_t>(value));
  } else if constexpr (std::same_as<T, int>) {
    writer.number(static_cast<std::uint32_t>(value));
  } else if constexpr (std::integral<T>) {
    writer.number(static_cast<std::uint64_t>(value));
  } else if constexpr (std::same_as<T, double>) {
    writer.number(std::bit_cast<std::uint64_t>(value));
  } else if constexpr (std::same_as<T, std::string>) {
    writer.text(value);
  } else if constexpr (std::same_as<T, Bytes>) {
    writer.text(as_text(value));
  } else if constexpr (wire_detail::Optional<T>) {
    writer.number(value ? 1 : 0);
    if (value) write_value(writer, *value);
  } else if constexpr (wire_detail::Pair<T>) {
    write_value(writer, value.first);
    write_value(writer, value.second);
  } else if constexpr (wire_detail::Map<T>) {
    writer.number(value.size());
    for (const auto& [key, mapped] : value) {
      write_value(writer, key);
      write_value(writer, mapped);
    }
  } else {
    static_assert(wire_detail::List<T>, "this type does not travel between ranks");
    writer.number(value.size());
    for (const auto& member : value) write_value(writer, member);
  }
}

template <typename T>
void read_value(WireReader& reader, T& value) {
  if constexpr (requires { read_from(reader, value); }) {
    read_from(reader, value);
  } else if constexpr (HasFields<T>) {
    read_fields(reader, value);
  } else if constexpr (std::same_as<T, bool>) {
    value = reader.number(1) == 1;
  } else if constexpr (WireEnum<T>) {
    value = static_cast<T>(reader.number(static_cast<std::uint64_t>(last_of(T{}))));
  } else if constexpr (std::same_as<T, int>) {
    value = static_cast<int>(static_cast<std::uint32_t>(reader.number(UINT32_MAX)));
  } else if constexpr (std::signed_integral<T>) {
    static_assert(sizeof(T) == 8);
    value = reader.signed_number();
  } else if constexpr (std::unsigned_integral<T>) {
    value = static_cast<T>(reader.number(static_cast<T>(-1)));
  } else if constexpr (std::same_as<T, double>) {
    value = std::bit_cast<double>(reader.number());
  } else if constexpr (std::same_as<T, std::string>) {
    value = reader.text();
  } else if constexpr (std::same_as<T, Bytes>) {
    value = to_bytes(reader.text());
  } else if constexpr (wire_detail::Optional<T>) {
    value.reset();
    if (reader.number(1) == 1) read_value(reader, value.emplace());
  } else if constexpr (wire_detail::Pair<T>) {
    read_value(reader, value.first);
    read_value(reader, value.second);
  } else if constexpr (wire_detail::Map<T>) {
    value.clear();
    for (std::size_t left = reader.count(); left > 0; --left) {
      typename T::key_type key{};
      read_value(reader, key);
      read_value(reader, value[std::move(key)]);
    }
  } else {
    static_assert(wire_detail::List<T>, "this type does not travel between ranks");
    value.clear();
    for (std::size_t left = reader.count(); left > 0; --left)
      read_value(reader, value.emplace_back());
  }
}

/// Returns a message that is one value.
template <typename T>
Bytes message_of(const T& value) {
  Bytes bytes;
  WireWriter writer(bytes);
  write_value(writer, value);
  return bytes;
}

/// Reads a message of message_of(). Throws CheckpointError (corrupt), naming `what`.
template <typename T>
T read_message(ByteView bytes, std::string what) {
  WireReader reader(bytes, std::move(what));
  T value{};
  read_value(reader, value);
  reader.finish();
  return value;
}

}  // namespace dckpt
