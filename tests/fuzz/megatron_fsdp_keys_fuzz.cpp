// Keys of Megatron-FSDP's tensors. Parts taken out of a key must come back when they are inserted
// again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "mapping/megatron/model_keys.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  const std::string_view key(reinterpret_cast<const char*>(data), size);
  with_fused_norms(with_local_norms(std::string(without_wrappers(key))));
  const ModelKey part = parse_fsdp_key(key);
  if (part.expert && !has_expert_axis(part.name)) std::abort();
  const bool grouped = key.find(".local_experts.") == key.npos;
  const ModelKey back = parse_fsdp_key(fsdp_key(part, grouped));
  if (back.name != part.name || back.half != part.half) std::abort();
  if (back.layer != part.layer || back.expert != part.expert) std::abort();
  return 0;
}
