#pragma once

#include <cstdint>
#include <optional>

#include "mapping/base/bytes.h"
#include "mapping/geometry/box.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/reader.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// Cuts a tensor into contiguous boxes in row-major order. None holds more than `limit` bytes,
/// except that each holds at least one element. A tensor without elements has no pieces.
class PieceWalker {
 public:
  PieceWalker(ShapeView shape, std::size_t item_size, std::uint64_t limit);

  /// Returns the next piece; empty at the end.
  std::optional<Box> next();

 private:
  Shape shape_;
  Shape at_;  // offsets of the next piece
  std::size_t axis_ =
      0;  // the axis that is cut; all before it have extent 1 in a piece, all after it are whole
  std::int64_t step_ = 1;
  bool done_ = false;
};

/// Throws CheckpointError (incomplete, corrupt) unless the chunks cover the tensor exactly.
void require_covered(const TensorStorageMetadata& tensor);

struct StreamOptions {
  std::uint64_t piece = std::uint64_t{64} << 20;  ///< bytes of the tensor in memory at a time
  int threads = 1;                                ///< threads that read one piece
};

/// Reads a stored tensor in its global shape, in row-major order, piece by piece. The reader must
/// outlive the stream.
class TensorStream {
 public:
  /// Throws CheckpointError (incomplete, corrupt) if the chunks do not cover the tensor exactly:
  /// bytes that were not stored are never delivered.
  TensorStream(const CheckpointReader& reader, std::size_t tensor,
               const StreamOptions& options = {});

  /// Returns the next piece, a contiguous tensor, valid until the next call; empty at the end.
  /// Throws CheckpointError.
  std::optional<Tensor> next();

 private:
  const CheckpointReader& reader_;
  std::size_t tensor_;
  ReadOptions read_;
  PieceWalker pieces_;
  Bytes buffer_;  // one for all pieces: touching fresh memory costs more than reading into it
};

}  // namespace dckpt
