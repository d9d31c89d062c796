#pragma once

#include <c10/core/Device.h>

#include <string>

namespace gpt {

/// The device of this process's tensors, and a line of text that names it.
struct ChosenDevice {
  c10::Device device;
  std::string note;
};

/// Chooses the device. `wanted` is "cpu", "cuda", or "auto": a GPU if this process can use one. The
/// processes of a node, numbered by LOCAL_RANK, take its GPUs in turn. From then on libtorch
/// computes on GPUs and dckpt saves their tensors. Call it before anything else of libtorch. Throws
/// std::invalid_argument for other words, and for "cuda" if no GPU can be used.
ChosenDevice choose_device(const std::string& wanted);

}  // namespace gpt
