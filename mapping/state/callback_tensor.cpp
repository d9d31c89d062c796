#include "mapping/state/callback_tensor.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/state/callback_elements.h"

namespace dckpt {
namespace {

// No process has memory at these addresses, and they suffice for 2^62 bytes of tensors.
constexpr std::uintptr_t kFirstAddress = std::uintptr_t{1} << 62;
constexpr std::uintptr_t kEndOfAddresses = std::uintptr_t{1} << 63;
constexpr std::uintptr_t kAddressAlignment = 64;

/// The callback tensors of the process by their addresses, which are never used again.
struct CallbackTensors {
  std::mutex mutex;
  std::uintptr_t next = kFirstAddress;
  std::map<const std::byte*, std::weak_ptr<const CallbackElements>> tensors;
};

CallbackTensors& callback_tensors() {
  static CallbackTensors* const all = new CallbackTensors;  // outlives static tensors
  return *all;
}

std::byte* take_address(std::uint64_t bytes) {
  CallbackTensors& all = callback_tensors();
  const std::lock_guard lock(all.mutex);
  if (bytes > kEndOfAddresses - all.next - kAddressAlignment)
    throw_error(ErrorCode::kInvalidArgument, "no addresses are left for a callback tensor");
  const std::uintptr_t address = all.next;
  all.next += (std::max<std::uint64_t>(bytes, 1) + kAddressAlignment - 1) / kAddressAlignment *
              kAddressAlignment;
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

Tensor callback_tensor(DType dtype, Shape shape, ElementCallbacks callbacks) {
  const Tensor meta = Tensor::meta(dtype, std::move(shape));
  if (!callbacks.read && !callbacks.write)
    throw_error(ErrorCode::kInvalidArgument,
                "the callbacks of the tensor {} are both missing; give `read` to save it, `write` "
                "to load into it",
                to_string(meta));
  const Device device{Device::Kind::kCallbacks, 0};
  std::byte* const address = take_address(meta.nbytes());
  const auto elements = std::shared_ptr<const CallbackElements>(
      new CallbackElements{{dtype, meta.shape(), meta.strides(), address, nullptr, device},
                           std::move(callbacks)},
      [](const CallbackElements* gone) {
        {
          const std::lock_guard lock(callback_tensors().mutex);
          callback_tensors().tensors.erase(gone->whole.data());
        }
        delete gone;  // the callbacks may own other tensors
      });
  {
    const std::lock_guard lock(callback_tensors().mutex);
    callback_tensors().tensors.emplace(address, elements);
  }
  return {dtype, meta.shape(), meta.strides(), address, elements, device};
}

std::shared_ptr<const CallbackElements> find_callback_elements(const std::byte* address,
                                                               std::size_t bytes) {
  std::shared_ptr<const CallbackElements> found;
  {
    const std::lock_guard lock(callback_tensors().mutex);
    const auto next = callback_tensors().tensors.upper_bound(address);
    if (next != callback_tensors().tensors.begin()) found = std::prev(next)->second.lock();
  }
  if (found) {
    const auto offset = static_cast<std::uint64_t>(address - found->whole.data());
    if (offset <= found->whole.nbytes() && bytes <= found->whole.nbytes() - offset) return found;
  }
  throw_error(ErrorCode::kInvalidArgument,
              "a copy of {} bytes refers to elements that no callback tensor has; a handle of the "
              "tensor must live until the save or load has ended",
              bytes);
}

}  // namespace dckpt
