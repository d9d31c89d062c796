#include "operations/inspect/extract/numpy_value.h"

#include <algorithm>

#include "mapping/base/checked.h"
#include "mapping/base/text.h"
#include "mapping/geometry/strided_copy.h"
#include "operations/inspect/extract/renderer.h"

namespace dckpt {
namespace {

using Kind = Value::Kind;

/// Matches both module names: numpy.core became numpy._core in numpy 2.
bool is_numpy(const Opaque& object, std::string_view name) {
  const std::string path = modern_class_path(object);
  return path == "numpy.core." + std::string(name) || path == "numpy._core." + std::string(name);
}

/// Returns a positional argument, or null.
const Value* argument(const Opaque& object, std::size_t index) {
  if (!object.args.is(Kind::kTuple) || index >= object.args.size()) return nullptr;
  return &object.args.items()[index];
}

const ValueList* only_state(const Opaque& object) {
  return object.states.size() == 1 && object.states.front().is(Kind::kTuple)
             ? &object.states.front().items()
             : nullptr;
}

std::optional<Shape> shape_of(const Value& value) {
  if (!value.is(Kind::kTuple) || value.size() > kMaxDims) return std::nullopt;
  Shape shape;
  for (const Value& extent : value.items()) {
    if (!extent.is_int()) return std::nullopt;
    shape.push_back(extent.as_int());
  }
  return shape;
}

void to_little_endian(Bytes& bytes, const NumpyDType& dtype) {
  if (!dtype.big_endian || dtype.swap_size < 2) return;
  for (auto at = bytes.begin(); at != bytes.end(); at += dtype.swap_size)
    std::reverse(at, at + dtype.swap_size);
}

std::optional<NumpyArray> assemble(const NumpyDType& dtype, const Shape& shape, const Bytes& bytes,
                                   bool fortran) {
  const std::optional<std::int64_t> count = checked_numel(shape);
  if (!count) return std::nullopt;
  const std::optional<std::int64_t> size = checked_mul(*count, dtype.item_size);
  if (!size || static_cast<std::uint64_t>(*size) != bytes.size()) return std::nullopt;
  NumpyArray array{dtype, shape, bytes};
  if (fortran && shape.size() > 1 && *count > 0) {
    Shape strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      strides[axis] = stride;
      stride *= shape[axis];
    }
    strided_copy(shape, static_cast<std::size_t>(dtype.item_size), bytes.data(), {0, strides},
                 array.bytes.data(), {0, row_major_strides(shape)});
  }
  to_little_endian(array.bytes, dtype);
  return array;
}

}  // namespace

std::string NumpyDType::spelling() const {
  const std::int64_t count = kind == 'U' ? item_size / 4 : item_size;
  const bool has_order = swap_size > 1 && kind != 'V';
  return (has_order ? "<" : "|") + std::string(1, kind) + std::to_string(count);
}

std::string NumpyDType::name() const {
  const std::string bits = std::to_string(item_size * 8);
  switch (kind) {
    case 'b': return "bool";
    case 'i': return "int" + bits;
    case 'u': return "uint" + bits;
    case 'f': return "float" + bits;
    case 'c': return "complex" + bits;
    default: return "";
  }
}

std::optional<NumpyDType> numpy_dtype(const Value& value) {
  if (!value.is(Kind::kOpaque)) return std::nullopt;
  const Opaque& object = value.as_opaque();
  const Value* const type = argument(object, 0);
  if (modern_class_path(object) != "numpy.dtype" || type == nullptr || !type->is_str() ||
      type->as_str().size() < 2)
    return std::nullopt;
  const std::optional<std::uint64_t> count = parse_u64(std::string_view(type->as_str()).substr(1));
  constexpr std::uint64_t kLongestItem = 1 << 20;
  if (!count || *count > kLongestItem) return std::nullopt;

  NumpyDType dtype{.kind = type->as_str().front()};
  const auto one_of = [&](std::initializer_list<std::uint64_t> sizes) {
    return std::ranges::find(sizes, *count) != sizes.end();
  };
  switch (dtype.kind) {
    case 'b':
      if (!one_of({1})) return std::nullopt;
      break;
    case 'i':
    case 'u':
      if (!one_of({1, 2, 4, 8})) return std::nullopt;
      break;
    case 'f':
      if (!one_of({2, 4, 8})) return std::nullopt;
      break;
    case 'c':
      if (!one_of({8, 16})) return std::nullopt;
      break;
    case 'S':
    case 'U':
    case 'V':
      if (*count == 0) return std::nullopt;
      break;
    default: return std::nullopt;
  }
  dtype.item_size = static_cast<std::int64_t>(dtype.kind == 'U' ? *count * 4 : *count);
  dtype.swap_size = dtype.kind == 'c'                        ? dtype.item_size / 2
                    : dtype.kind == 'U'                      ? 4
                    : dtype.kind == 'S' || dtype.kind == 'V' ? 1
                                                             : dtype.item_size;
  if (const ValueList* state = only_state(object)) {
    // (version, byte order, subdtype, names, fields, …)
    if (state->size() < 5 || !(*state)[1].is_str() || !(*state)[2].is_none() ||
        !(*state)[3].is_none())
      return std::nullopt;
    dtype.big_endian = (*state)[1].as_str() == ">";
  }
  return dtype;
}

std::optional<NumpyArray> numpy_array(const Opaque& object) {
  if (is_numpy(object, "multiarray._reconstruct")) {
    // State: (version, shape, dtype, Fortran order, bytes); a list instead of bytes for arrays of
    // objects.
    const ValueList* const state = only_state(object);
    if (state == nullptr || state->size() != 5 || !(*state)[3].is(Kind::kBool) ||
        !((*state)[4].is(Kind::kBytes)))
      return std::nullopt;
    const std::optional<Shape> shape = shape_of((*state)[1]);
    const std::optional<NumpyDType> dtype = numpy_dtype((*state)[2]);
    if (!shape || !dtype) return std::nullopt;
    return assemble(*dtype, *shape, (*state)[4].as_bytes(), (*state)[3].as_bool());
  }
  if (is_numpy(object, "numeric._frombuffer")) {
    // Arguments: buffer, dtype, shape, "C" or "F".
    if (!object.args.is(Kind::kTuple) || object.args.size() != 4) return std::nullopt;
    const ValueList& args = object.args.items();
    if (!(args[0].is(Kind::kBytes) || args[0].is(Kind::kByteArray)) || !args[3].is_str())
      return std::nullopt;
    const std::optional<Shape> shape = shape_of(args[2]);
    const std::optional<NumpyDType> dtype = numpy_dtype(args[1]);
    if (!shape || !dtype) return std::nullopt;
    return assemble(*dtype, *shape, args[0].as_bytes(), args[3].as_str() == "F");
  }
  return std::nullopt;
}

std::optional<NumpyScalar> numpy_scalar(const Opaque& object) {
  const Value* const type = argument(object, 0);
  const Value* const bytes = argument(object, 1);
  if (!is_numpy(object, "multiarray.scalar") || type == nullptr || bytes == nullptr ||
      !bytes->is(Kind::kBytes))
    return std::nullopt;
  const std::optional<NumpyDType> dtype = numpy_dtype(*type);
  if (!dtype || dtype->name().empty() ||
      static_cast<std::uint64_t>(dtype->item_size) != bytes->as_bytes().size())
    return std::nullopt;
  NumpyScalar scalar{*dtype, bytes->as_bytes()};
  to_little_endian(scalar.bytes, *dtype);
  return scalar;
}

}  // namespace dckpt
