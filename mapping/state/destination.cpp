#include "mapping/state/destination.h"

#include <cstddef>

#include "mapping/base/format.h"
#include "mapping/state/callback_elements.h"
#include "mapping/state/dlpack.h"

namespace dckpt {
namespace {

/// Returns whether several elements have one address, as in a tensor that was expanded.
bool has_shared_elements(const Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  for (std::size_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.strides()[axis] == 0 && tensor.shape()[axis] > 1) return true;
  }
  return false;
}

}  // namespace

std::string unfit_to_load_into(const Tensor& tensor) {
  if (is_save_only(tensor)) {
    return "was imported through DLPack to be saved only; import it with DlpackUse::kLoad";
  }
  if (tensor.device().kind == Device::Kind::kCallbacks && tensor.numel() > 0 &&
      !find_callback_elements(tensor.data(), 0)->callbacks.write) {
    return "has no callback `write` that takes its elements";
  }
  if (has_shared_elements(tensor)) {
    return str_format(
        "has the shape {} and the strides {}: several elements share their memory; load into a "
        "tensor of its own",
        to_string(tensor.shape()), to_string(tensor.strides()));
  }
  return "";
}

}  // namespace dckpt
