#pragma once

#include <span>

#include "mapping/state/tensor.h"
#include "strategies/comm/communicator.h"
#include "transfer/transfer_plan.h"
#include "transfer/transfer_program.h"

namespace dckpt {

/// The tensors of a layout: item i is a part of tensors[items[i].source], with the strides that it
/// has, or of its single axis where the item is flattened. Borrows both.
struct TransferEnd {
  const TransferLayout& items;
  std::span<const Tensor> tensors;
};

/// Carries out the programs of one plan. Collective. Throws the same CheckpointError on all ranks;
/// the wanted tensors are then partly filled. Tensors may be in device memory: where `comm` is a
/// DeviceExchange, those on its device are sent and received in place. The thread that has enqueued
/// the kernels that make or use them must call it.
void run_transfer(const TransferProgram& program, const TransferEnd& held,
                  const TransferEnd& wanted, Communicator& comm);

}  // namespace dckpt
