#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <span>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mapping/base/bytes.h"
#include "strategies/comm/point_to_point.h"

namespace dckpt {

/// Throws CheckpointError (invalid argument) for a null backend.
void check_backend(const c10::intrusive_ptr<c10d::Backend>& backend);

/// What the backend throws in `call` becomes an error that says for whom this rank waited.
void backend_call(std::span<const int> peers, const Deadline& deadline,
                  const std::function<void()>& call);

/// Until the work is done; throws at the deadline.
void wait(c10d::Work& work, const Deadline& deadline);

/// A view; a backend takes no pointers to const, and only reads what it sends.
at::Tensor tensor_over(ByteView bytes);

}  // namespace dckpt
