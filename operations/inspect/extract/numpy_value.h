#pragma once

#include <optional>
#include <string>

#include "mapping/base/bytes.h"
#include "mapping/geometry/shape.h"
#include "mapping/state/value.h"

namespace dckpt {

/// The element type of a numpy array as its pickle describes it. Only types whose elements are
/// plain bytes are supported: numbers, bool, S, U, V.
struct NumpyDType {
  char kind = 'f';             ///< numpy's letter: b i u f c S U V
  std::int64_t item_size = 0;  ///< in bytes
  std::int64_t swap_size = 1;  ///< unit of byte order: half an item for complex numbers, 4 for U
  bool big_endian = false;

  /// Returns numpy's spelling, such as "<f4" or "|u1", little-endian whatever the stored order.
  std::string spelling() const;
  /// Returns the name of the scalar type, such as "float64"; empty for strings.
  std::string name() const;
};

/// Reads `numpy.dtype('f4', False, True)` with its state. Empty if it is another object, or a type
/// that holds objects, fields or units.
std::optional<NumpyDType> numpy_dtype(const Value& value);

struct NumpyArray {
  NumpyDType dtype;
  Shape shape;
  Bytes bytes;  ///< C order, little-endian
};

/// Reads a numpy.ndarray (`_reconstruct` with its state, or protocol 5's `_frombuffer`). Empty if
/// it is another object, or if its shape and bytes disagree.
std::optional<NumpyArray> numpy_array(const Opaque& object);

struct NumpyScalar {
  NumpyDType dtype;
  Bytes bytes;  ///< little-endian
};

/// Reads `numpy.core.multiarray.scalar(dtype, bytes)`.
std::optional<NumpyScalar> numpy_scalar(const Opaque& object);

}  // namespace dckpt
