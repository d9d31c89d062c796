#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mapping/state/value.h"

namespace dckpt {

/// The walk behind render(): knows what it is inside of.
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
  Value reference(std::uint32_t label);

  std::vector<std::uint32_t> labels_;  // of the values around; 0 for one without
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

/// A class or function as today's Python and NumPy name it: "builtins.set" for protocol 2's
/// "__builtin__ set", so that equal values of two releases look equal.
std::string modern_path(const Global& global);
/// The same for the class of an object. Empty if the callable is not a plain name.
std::string modern_class_path(const Opaque& object);

}  // namespace dckpt
