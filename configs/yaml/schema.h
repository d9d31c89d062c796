#pragma once

#include <bit>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "configs/yaml/problems.h"
#include "configs/yaml/yaml.h"
#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"
#include "mapping/base/error.h"

// One description per struct, from which its YAML is read, checked, corrected ("did you mean") and
// printed, and from which docs/schemas describes it.
//
//   static const Schema<ParallelOptions> schema{{
//       field("enabled", &ParallelOptions::enabled, flag()),
//       field("exchange", &ParallelOptions::exchange, choice(kExchangeNames)),
//   }};

namespace DCKPT_API dckpt {
namespace config {

// Descriptions are plain data with the addresses of a few functions: every trainer links them, and
// a policy has some sixty fields.

struct AnySchema;

/// The shape of a value when it is shown.
enum class Kind : std::uint8_t {
  kAny,
  kFlag,
  kInteger,    ///< from `least` to `most`
  kNumber,     ///< a decimal
  kSize,       ///< a number with a unit
  kDuration,   ///< "none", or a number with a unit
  kText,       ///< any text
  kChoice,     ///< one of `names`
  kList,       ///< of `parts[0]`; with `most`, from `least` to `most` of them
  kOneOrMore,  ///< `parts[0]`, or a list of at least `least` of them
  kMapping,  ///< any keys, or some of `names`, with values of the form `parts[0]`, if there is one
  kEither,   ///< any of `parts`
  kSection,  ///< the fields of `section`
};

/// The names of an EnumNames of any enumeration; `pairs` must stay.
struct Names {
  const std::byte* pairs = nullptr;
  std::uint32_t count = 0;
  std::uint16_t stride = 0;       ///< from pair to pair
  std::uint8_t name_at = 0;       ///< offset of the name in a pair; the value comes first
  std::uint8_t bytes_of_one = 0;  ///< size of a value

  std::string_view name(std::size_t i) const noexcept;
  std::vector<std::string> all() const;
  friend bool operator==(const Names&, const Names&) = default;
};

/// A node to read, its path ("save.io.threads") and the problems of its file.
struct Input {
  const YamlNode& node;
  const std::string& path;
  ConfigProblems& problems;

  /// Returns another node under the same path.
  Input of(const YamlNode& other) const { return {other, path, problems}; }

  /// Reports "save.io.threads: message".
  void report(const std::string& message, ErrorCode code = ErrorCode::kInvalidArgument) const;
  /// Reports "save.io.threads: found 'many', expected an integer from 1 to 1024".
  void unfit(const std::string& expected) const;
};

/// A description of values of one type, and the functions that read and show them. Texts must
/// stay: they are literals.
struct Form {
  Kind kind = Kind::kAny;
  bool or_null = false;       ///< null is a value, too
  std::uint8_t bytes = 0;     ///< of an integer
  const char* expected = "";  ///< for messages: "a pattern of keys"
  std::int64_t least = 0;
  std::int64_t most = 0;
  Names names{};
  const Form* parts = nullptr;
  std::size_t part_count = 0;
  const AnySchema* section = nullptr;
  void (*reader)(const Form& form, const Input& in, void* into) = nullptr;
  YamlNode (*shower)(const Form& form, const void* value) = nullptr;

  void read(const Input& in, void* into) const { reader(*this, in, into); }
  YamlNode show(const void* value) const { return shower(*this, value); }

  friend bool operator==(const Form&, const Form&) = default;
};

/// Returns the form with copies of `parts` that stay.
Form with_parts(Form form, std::initializer_list<Form> parts);

/// The form of a T. It reads a value from a node and shows it as one. Reading leaves the value
/// alone and reports a problem if the node does not fit.
template <typename T>
class Type {
 public:
  Form form{};

  explicit Type(const Form& described) : form(described) {}

  /// Functions without captures: `read` takes (const Input&, T&), and `show` a const T& and returns
  /// a YamlNode. Both may take the form before these.
  template <typename Read, typename Show>
  Type(Read read, Show show) {
    *this = reading(read).showing(show);
  }

  template <typename Callable>
  requires std::is_empty_v<Callable>
  [[nodiscard]] Type reading(Callable) const {
    Type type = *this;
    type.form.reader = [](const Form& self, const Input& in, void* into) {
      if constexpr (std::invocable<const Callable&, const Input&, T&>)
        Callable{}(in, *static_cast<T*>(into));
      else
        Callable{}(self, in, *static_cast<T*>(into));
    };
    return type;
  }

  template <typename Callable>
  requires std::is_empty_v<Callable>
  [[nodiscard]] Type showing(Callable) const {
    Type type = *this;
    type.form.shower = [](const Form& self, const void* value) -> YamlNode {
      if constexpr (std::invocable<const Callable&, const T&>)
        return Callable{}(*static_cast<const T*>(value));
      else
        return Callable{}(self, *static_cast<const T*>(value));
    };
    return type;
  }

  void read(const Input& in, T& into) const { form.read(in, &into); }
  YamlNode show(const T& value) const { return form.show(&value); }
};

/// The type of true and false.
Type<bool> flag();

/// The type of nonempty text.
Type<std::string> text(const char* expected);

/// The type of a size in bytes, read from a number with a unit; shown in the largest unit that
/// divides it. `most` is at most 2^53.
Type<std::uint64_t> size(std::uint64_t least, std::uint64_t most);

/// The type of "none" (0) or a whole number with a unit (ms, s, min, h), at most a year; shown in
/// the largest unit that divides it.
Type<std::chrono::milliseconds> duration();

Form integer_form(std::int64_t least, std::int64_t most, std::size_t bytes);

template <std::integral T>
Type<T> integer(T least, T most) {
  return Type<T>(
      integer_form(static_cast<std::int64_t>(least), static_cast<std::int64_t>(most), sizeof(T)));
}

/// Returns "a, b or c", if `last` is " or ".
std::string joined(const std::vector<std::string>& names, const std::string& last);

/// Returns the position of a node's text among `names`; otherwise reports a problem that lists them
/// and suggests the nearest.
[[nodiscard]] std::optional<std::size_t> read_name(const Input& in,
                                                   const std::vector<std::string>& names);

Form choice_form(const Names& names);

/// The type of an enumeration, whose `names` must stay.
template <typename Enum, std::size_t N>
Type<Enum> choice(const EnumNames<Enum, N>& names) {
  static_assert(std::is_trivially_copyable_v<Enum> && N > 0);
  const auto* const first = reinterpret_cast<const std::byte*>(names.data());
  const auto* const name = reinterpret_cast<const std::byte*>(&names[0].second);
  return Type<Enum>(choice_form({.pairs = first,
                                 .count = N,
                                 .stride = sizeof(names[0]),
                                 .name_at = static_cast<std::uint8_t>(name - first),
                                 .bytes_of_one = sizeof(Enum)}));
}

/// Returns how many items a node of a list's form has; reports a problem if it does not fit.
std::optional<std::size_t> count_items(const Form& form, const Input& in);
void read_items(const Form& form, const Input& in, void* items, std::size_t bytes_of_one);
YamlNode show_items(const Form& form, const void* items, std::size_t bytes_of_one,
                    std::size_t count);

template <typename T>
Type<std::vector<T>> items_of(const Type<T>& item, Kind kind, const char* expected) {
  return Type<std::vector<T>>(with_parts({.kind = kind, .expected = expected}, {item.form}))
      .reading([](const Form& form, const Input& in, std::vector<T>& into) {
        const auto count = count_items(form, in);
        if (!count) return;
        into.assign(*count, T{});
        read_items(form, in, into.data(), sizeof(T));
      })
      .showing([](const Form& form, const std::vector<T>& values) {
        return show_items(form, values.data(), sizeof(T), values.size());
      });
}

/// The type of a list, which replaces the default as a whole.
template <typename T>
Type<std::vector<T>> list_of(const Type<T>& item, const char* expected) {
  return items_of(item, Kind::kList, expected);
}

/// The type of one item or a list; shown as a list unless there is one item.
template <typename T>
Type<std::vector<T>> one_or_more(const Type<T>& item, const char* expected) {
  return items_of(item, Kind::kOneOrMore, expected);
}

/// The type of what has no value unless it is given.
template <typename T>
Type<std::optional<T>> optional_of(const Type<T>& item) {
  return Type<std::optional<T>>(with_parts({.kind = Kind::kEither}, {item.form}))
      .reading([](const Form& form, const Input& in, std::optional<T>& into) {
        const std::size_t before = in.problems.size();
        T value{};
        form.parts[0].read(in, &value);
        if (in.problems.size() == before) into = std::move(value);
      })
      .showing([](const Form& form, const std::optional<T>& value) {
        return value ? form.parts[0].show(&*value) : YamlNode();
      });
}

/// A field of some struct.
struct AnyField {
  const char* name = "";
  Form form{};
  std::size_t offset = 0;  ///< of the struct's part that the form describes
  /// Returns whether the part need not be shown; null: it always is.
  bool (*left_out)(const void* part) = nullptr;
  bool required = false;  ///< missing it is a mistake
  bool hidden = false;    ///< understood, but not shown
};

// Not inline, since a table has a call for each of its fields.
AnyField make_field(const char* name, const Form& form, std::size_t offset,
                    bool (*left_out)(const void* part));
AnyField moved(const AnyField& field, std::size_t offset);

/// A field of the struct S.
template <typename S>
struct Field {
  AnyField any;

  explicit Field(const AnyField& field) : any(field) {}
  Field(const AnyField& field, std::size_t offset) : any(moved(field, offset)) {}
  Field(const char* name, const Form& form, std::size_t offset = 0,
        bool (*left_out)(const void* part) = nullptr)
      : any(make_field(name, form, offset, left_out)) {}

  operator const AnyField&() const noexcept { return any; }  // NOLINT(google-explicit-constructor)
};

/// A pointer to a member is its offset in the ABI of all compilers that are supported.
template <typename S, typename T>
std::size_t offset_of(T S::*member) {
  static_assert(sizeof(member) == sizeof(std::size_t));
  return std::bit_cast<std::size_t>(member);
}

template <typename S, typename T>
Field<S> field(const char* name, T S::*member, const Type<std::type_identity_t<T>>& type) {
  return Field<S>(name, type.form, offset_of(member));
}

/// A field that is shown only if it differs from its type's default.
template <typename S, typename T>
Field<S> optional_field(const char* name, T S::*member, const Type<std::type_identity_t<T>>& type) {
  return Field<S>(name, type.form, offset_of(member),
                  [](const void* part) { return *static_cast<const T*>(part) == T{}; });
}

/// A field that is the whole struct, for forms that concern several members.
template <typename S>
Field<S> whole(const char* name, const Type<S>& type) {
  return Field<S>(name, type.form);
}

/// Such a field, which is not shown if a function without captures returns true for a const S&.
template <typename S, typename Callable>
Field<S> whole_unless(const char* name, const Type<S>& type, Callable) {
  static_assert(std::is_empty_v<Callable>);
  return Field<S>(name, type.form, 0,
                  [](const void* part) { return Callable{}(*static_cast<const S*>(part)); });
}

/// A field of a part of a struct, as one of the struct.
template <typename S, typename Part>
Field<S> inside(Part S::*part, const Field<std::type_identity_t<Part>>& field) {
  return Field<S>(field.any, offset_of(part));
}

/// A field that must be given.
template <typename S>
Field<S> required(Field<S> field) {
  field.any.required = true;
  return field;
}

/// A field that is understood, but not shown. `read` is a function without captures that takes
/// (const Input&, S&).
template <typename S, typename Read>
Field<S> hidden(const char* name, Read read) {
  Field<S> field = whole(name, Type<S>(Form{}).reading(read));
  field.any.hidden = true;
  return field;
}

/// Fields, of a struct, and a check of it once the fields of a map have been read. It must outlive
/// the types that are made of it.
struct AnySchema {
  std::vector<AnyField> fields{};
  void (*check)(const Input& in, const void* value) = nullptr;
  const char* written = "";  ///< behind "'to' is missing": "; a rule is {from: REGEX, …}"

  std::vector<std::string> names() const;
  void add(const AnyField* more, std::size_t count);
};

template <typename S>
struct Schema : AnySchema {
  Schema(std::initializer_list<Field<S>> of, const char* as_written = "") {
    static_assert(sizeof(Field<S>) == sizeof(AnyField));
    add(reinterpret_cast<const AnyField*>(of.begin()), of.size());
    written = as_written;
  }

  /// `check` is a function without captures: (const Input&, const S&).
  template <typename Callable>
  requires std::is_empty_v<Callable> Schema(std::initializer_list<Field<S>> of, Callable,
                                            const char* as_written = "")
      : Schema(of, as_written) {
    check = [](const Input& in, const void* value) {
      Callable{}(in, *static_cast<const S*>(value));
    };
  }
};

Form section_form(const AnySchema& schema);
void read_section(const AnySchema& schema, const Input& in, void* into);
YamlNode show_section(const AnySchema& schema, const void* value);

/// The type of a struct: a map of some of its fields; the others keep their defaults.
template <typename S>
Type<S> section(const Schema<S>& schema) {
  return Type<S>(section_form(schema));
}
template <typename S>
Type<S> section(const Schema<S>&& schema) = delete;

/// The fields with which every file begins. `what` is "policies", `expected` "the name of a policy
/// that comes with dckpt, or a file". The file that is extended is read by the caller.
AnyField version_field(const char* what);
AnyField extends_field(const char* expected);

/// Reports a file that does not begin with its version.
void require_version(const Input& file);

}  // namespace config
}  // namespace dckpt
