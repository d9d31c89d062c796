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

/// Has the process ignore SIGPIPE if it would end by it: Gloo writes to connections that a dead
/// peer has closed.
void survive_closed_connections();

/// Turns what the backend throws in `call` into an error that names the ranks that this rank waited
/// for.
void backend_call(std::span<const int> peers, const Deadline& deadline,
                  const std::function<void()>& call);

/// Waits until the work is done; throws at the deadline.
void wait(c10d::Work& work, const Deadline& deadline);

/// Returns a view. A backend takes no pointers to const and only reads what it sends.
at::Tensor tensor_over(ByteView bytes);

}  // namespace dckpt
