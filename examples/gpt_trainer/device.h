#pragma once

#include <c10/core/Device.h>

#include <string>

namespace gpt {

/// Where this process keeps its tensors, and one line for people that says so.
struct ChosenDevice {
  c10::Device device;
  std::string note;
};

/// `wanted` is "cpu", "cuda", or "auto": a GPU where this process can use one. The processes of a
/// node, which LOCAL_RANK counts, take its GPUs in turn. From then on libtorch computes on GPUs and
/// dckpt saves their tensors. Call it before anything else of libtorch. Throws
/// std::invalid_argument for other words, and for "cuda" where no GPU can be used.
ChosenDevice choose_device(const std::string& wanted);

}  // namespace gpt
