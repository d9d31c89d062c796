#pragma once

#include <tuple>

#include "mapping/base/api.h"

// A record lists its fields once. Messages between ranks (mapping/base/wire_fields.h), JSON
// (operations/json/json_record.h) and its schemas (docs/schemas) are made from the list:
//
//   struct Place {
//     std::string file;
//     std::uint64_t offset = 0;
//   };
//   constexpr auto fields(const Place*) {
//     return std::tuple(Field("file", &Place::file, "Data file."),
//                       Field("offset", &Place::offset, "Byte offset in the file."));
//   }
namespace DCKPT_API dckpt {

/// A field of a record.
template <typename Member>
struct Field {
  const char* name;   ///< in JSON; null for what only messages have
  Member member;      ///< a pointer to it; of JSON alone also a function of the record
  const char* about;  ///< for readers of the schema: a sentence

  constexpr Field(const char* in_json, Member of, const char* for_readers = "")
      : name(in_json), member(of), about(for_readers) {}
  constexpr explicit Field(Member of) : Field(nullptr, of) {}
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
