#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mapping/state/value.h"

namespace dckpt {

/// The recursion of render(), which tracks the enclosing values.
class Renderer {
 public:
  Value value(const Value& value);
  /// Renders an array of the members.
  Value array(const ValueList& items);
  /// Renders an array of [key, value] arrays.
  Value pairs(const std::vector<std::pair<Value, Value>>& items);
  Value real(double value);

 private:
  Value sequence(const char* kind, const ValueList& items);
  Value set(const char* tag, const ValueList& items);
  Value dict(const Dict& dict);
  Value opaque(const Opaque& object);
  Value reference(std::uint32_t label);

  std::vector<std::uint32_t> labels_;  // labels of the enclosing values; 0 for one without
};

/// Returns {name: content}.
Value tagged(const char* name, Value content);

/// Renders the length, the digest and, if there are few, the bytes themselves.
Value render_bytes(ByteView bytes);

/// Renders {"dtype", "shape", "sha256", "first"}.
Value render_tensor(const Tensor& tensor);

/// Renders an object whose class is known (render_objects.cpp); empty for any other, and for a
/// known class whose fields are not as expected.
std::optional<Value> render_known_object(Renderer& renderer, const Opaque& object);

/// Returns the name of a class or function in today's Python and NumPy: "numpy._core.…" for
/// "numpy.core.…", so that equal values of two releases look equal.
std::string modern_path(const Global& global);
/// Returns the same for the class of an object. Empty if the callable is not a plain name.
std::string modern_class_path(const Opaque& object);

}  // namespace dckpt
