// Keys of Megatron-FSDP's tensors. What is taken out of a key must come back when it is put in
// again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "dist_checkpointing/rewrite/megatron_fsdp_keys.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  const std::string_view key(reinterpret_cast<const char*>(data), size);
  norm_in_torch_dist(norm_of_local_layer(std::string(without_wrappers(key))));
  const FsdpPart part = parse_fsdp_key(key);
  if (part.expert && !has_expert_axis(part.key)) std::abort();
  const bool grouped = key.find(".local_experts.") == key.npos;
  const FsdpPart back = parse_fsdp_key(fsdp_key(part, grouped));
  if (back.key != part.key || back.half != part.half) std::abort();
  if (back.layer != part.layer || back.expert != part.expert) std::abort();
  return 0;
}
