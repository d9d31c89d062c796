#include "operations/inspect/stream.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/validate.h"

namespace dckpt {

PieceWalker::PieceWalker(ShapeView shape, std::size_t item_size, std::uint64_t limit)
    : shape_(Shape(shape)), at_(shape.size(), 0) {
  done_ = numel(shape) == 0;
  if (done_ || shape_.empty()) return;
  const std::uint64_t elements = std::max<std::uint64_t>(limit / item_size, 1);
  std::uint64_t inner = 1;  // elements of one entry along axis_
  axis_ = shape_.size() - 1;
  while (axis_ > 0 && inner * static_cast<std::uint64_t>(shape_[axis_]) <= elements)
    inner *= static_cast<std::uint64_t>(shape_[axis_--]);
  step_ = static_cast<std::int64_t>(
      std::min(elements / inner, static_cast<std::uint64_t>(shape_[axis_])));
}

std::optional<Box> PieceWalker::next() {
  if (done_) return std::nullopt;
  Box box{at_, shape_};
  if (shape_.empty()) {
    done_ = true;
    return box;
  }
  for (std::size_t i = 0; i < axis_; ++i) box.sizes[i] = 1;
  box.sizes[axis_] = std::min(step_, shape_[axis_] - at_[axis_]);
  at_[axis_] += box.sizes[axis_];
  for (std::size_t axis = axis_; at_[axis] == shape_[axis]; --axis) {
    if (axis == 0) {
      done_ = true;
      break;
    }
    at_[axis] = 0;
    ++at_[axis - 1];
  }
  return box;
}

void require_covered(const TensorStorageMetadata& tensor) {
  const std::vector<CoverageProblem> problems = validate_coverage(tensor);
  if (problems.empty()) return;
  const CoverageProblem& first = problems.front();
  throw_error(
      first.code == FindingCode::kElementsMissing ? ErrorCode::kIncomplete : ErrorCode::kCorrupt,
      {.key = tensor.key}, first.message);
}

TensorStream::TensorStream(const CheckpointReader& reader, std::size_t tensor,
                           const StreamOptions& options)
    : reader_(reader),
      tensor_(tensor),
      pieces_(reader.metadata().tensors[tensor].global_shape(),
              item_size(reader.metadata().tensors[tensor].properties.dtype), options.piece) {
  require_covered(reader.metadata().tensors[tensor]);
  read_.threads = options.threads;
  read_.staging = options.piece;
}

std::optional<Tensor> TensorStream::next() {
  const std::optional<Box> box = pieces_.next();
  if (!box) return std::nullopt;
  const DType dtype = reader_.metadata().tensors[tensor_].properties.dtype;
  const std::size_t bytes = static_cast<std::size_t>(numel(box->sizes)) * item_size(dtype);
  if (buffer_.size() < bytes) buffer_.resize(bytes);
  const Tensor piece = Tensor::wrap(dtype, box->sizes, buffer_.data());
  const WantedShard wanted{
      .tensor = static_cast<std::uint32_t>(tensor_), .destination = 0, .box = *box};
  read_tensors(reader_, plan_reads(reader_.metadata(), {&wanted, 1}), {&piece, 1}, read_);
  return piece;
}

}  // namespace dckpt
