#pragma once

#include <optional>
#include <string>

#include "mapping/state/value.h"

namespace dckpt {

/// The walk behind render(): knows how deep it is.
class Renderer {
 public:
  Value value(const Value& value);
  /// An array of the members.
  Value array(const ValueList& items);
  /// An array of [key, value] arrays.
  Value pairs(const std::vector<std::pair<Value, Value>>& items);
  Value real(double value);

 private:
  Value sequence(const char* kind, const ValueList& items);
  Value set(const char* tag, const ValueList& items);
  Value dict(const Dict& dict);
  Value opaque(const Opaque& object);

  int depth_ = 0;
};

/// {name: content}
Value tagged(const char* name, Value content);

/// Length, digest and, if they are few, the bytes themselves.
Value render_bytes(ByteView bytes);

/// {"dtype", "shape", "sha256", "first"}
Value render_tensor(const Tensor& tensor);

/// An object whose class is known (render_objects.cpp); empty for any other, and for a known class
/// whose fields are not as expected.
std::optional<Value> render_known_object(Renderer& renderer, const Opaque& object);

/// The class of an object as today's Python names it: "builtins.set" for protocol 2's "__builtin__
/// set". Empty if the callable is not a plain name.
std::string modern_class_path(const Opaque& object);

}  // namespace dckpt
