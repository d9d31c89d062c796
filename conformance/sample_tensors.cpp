#include "conformance/sample_tensors.h"

#include <functional>
#include <tuple>

#include "mapping/geometry/box.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt::conformance {
namespace {

Tensor cut(const Tensor& tensor, const Box& box) {
  Tensor part = tensor;
  for (std::size_t axis = 0; axis < box.dims(); ++axis)
    part = part.narrow(axis, box.offsets[axis], box.sizes[axis]);
  const Tensor contiguous = part.contiguous();
  return Tensor::from_bytes(contiguous.dtype(), contiguous.shape(),
                            contiguous.bytes());  // memory of its own
}

}  // namespace

Tensor pattern(DType dtype, const Shape& shape, const std::string& key) {
  Tensor tensor = Tensor::empty(dtype, shape);
  std::uint64_t state = std::hash<std::string>{}(key) | 1;
  for (std::byte& byte : tensor.bytes()) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(dtype == DType::kBool ? (state >> 60) & 1 : state >> 56);
  }
  return tensor;
}

std::pair<std::int64_t, std::int64_t> uneven_part(std::int64_t extent, int rank, int ranks) {
  const auto begin = [&](int r) { return extent * r * r / (std::int64_t{ranks} * ranks); };
  return {begin(rank), begin(rank + 1) - begin(rank)};
}

Tensors sample_tensors() {
  Tensors tensors;
  const auto add = [&](const std::string& key, DType dtype, const Shape& shape) {
    tensors.emplace(key, pattern(dtype, shape, key));
  };
  for (const DType dtype :
       {DType::kBool, DType::kUInt8, DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64,
        DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kComplex64,
        DType::kComplex128, DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    add("dtype." + std::string(to_string(dtype)), dtype, {13, 5});
  }
  add("shape.scalar", DType::kFloat32, {});
  add("shape.1", DType::kFloat32, {1});
  add("shape.97", DType::kInt16, {97});
  add("shape.3d", DType::kFloat32, {7, 3, 5});
  add("shape.4d", DType::kBFloat16, {3, 2, 5, 4});
  add("shape.empty", DType::kFloat32, {0, 4});
  add("key with spaces/slashes, \"quotes\" and \xC3\xBC", DType::kInt32, {3});
  add("large", DType::kFloat32, {9, 1024, 257});
  for (int i = 0; i < 300; ++i) add("small." + std::to_string(i), DType::kFloat32, {i % 7 + 1});
  return tensors;
}

StateDict shares_of(const Tensors& tensors, int rank, int ranks) {
  StateDict state = Value::dict();
  int next = 0;
  for (const auto& [key, tensor] : tensors) {
    if (next++ % ranks == rank)
      state[key] = ShardedTensor::whole(key, cut(tensor, whole(tensor.shape())));
  }
  return state;
}

StateDict shards_of(const Tensors& tensors, int rank, int ranks, bool with_data) {
  StateDict state = Value::dict();
  for (const auto& [key, tensor] : tensors) {
    const auto data = [&, &tensor = tensor](const Box& box) {
      return with_data ? cut(tensor, box) : Tensor::empty(tensor.dtype(), box.sizes);
    };
    if (tensor.dim() == 0 || tensor.shape()[0] < 2) {
      state[key] = ShardedTensor::whole(key, data(whole(tensor.shape())), {.replica_id = rank});
      continue;
    }
    Box box = whole(tensor.shape());
    std::tie(box.offsets[0], box.sizes[0]) = uneven_part(tensor.shape()[0], rank, ranks);
    state[key] = ShardedTensor::from_box(key, data(box), tensor.shape(), box.offsets);
  }
  return state;
}

}  // namespace dckpt::conformance
