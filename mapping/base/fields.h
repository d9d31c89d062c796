#pragma once

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "mapping/base/api.h"

// A record lists its fields once, beside its definition. Messages between ranks
// (mapping/base/wire_fields.h) and reports as JSON are made from the list:
//
//   struct Place {
//     std::string file;
//     std::uint64_t offset = 0;
//   };
//   constexpr auto fields(const Place*) {
//     return std::tuple(Field("file", &Place::file, "Name of the file."),
//                       Field("offset", &Place::offset, "Byte offset in the file."));
//   }
namespace DCKPT_API dckpt {

/// A field of a record. `Get` is a pointer to a member, or what computes a value from the record,
/// which messages leave out.
template <typename Get>
struct Field {
  const char* name;  ///< in JSON; null for what only messages have
  Get get;
  const char* about = "";  ///< a sentence for the schema of the JSON

  constexpr Field(const char* in_json, Get getter, const char* meaning = "")
      : name(in_json), get(getter), about(meaning) {}
  /// A field of messages alone.
  constexpr explicit Field(Get getter) : name(nullptr), get(getter) {}

  static constexpr bool is_stored() { return std::is_member_object_pointer_v<Get>; }
};

/// A type that lists its fields.
template <typename T>
concept HasFields = requires(const T* record) {
  fields(record);
};

/// Calls `visit` with each field of T, in their order.
template <HasFields T, typename Visit>
constexpr void for_each_field(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); },
             fields(static_cast<const T*>(nullptr)));
}

}  // namespace dckpt
