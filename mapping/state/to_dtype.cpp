#include "mapping/state/to_dtype.h"

#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"

namespace dckpt {

Tensor to_dtype(const Tensor& tensor, DType dtype) {
  if (!can_cast(tensor.dtype(), dtype))
    throw_error(ErrorCode::kInvalidArgument,
                "{} cannot be converted to {} without losing more than digits",
                to_string(tensor.dtype()), to_string(dtype));
  const Tensor source = tensor.contiguous();
  Tensor converted = Tensor::empty(dtype, source.shape());
  cast_elements(source.dtype(), source.data(), dtype, converted.data(),
                static_cast<std::size_t>(source.numel()));
  return converted;
}

}  // namespace dckpt
