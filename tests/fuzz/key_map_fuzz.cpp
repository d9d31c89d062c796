#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "configs/maps/key_map.h"
#include "mapping/base/error.h"
#include "migration/maps/arrangement/apply_key_map.h"

namespace {

/// Returns a checkpoint whose keys are those of the map's own rows, with small numbers.
dckpt::Metadata checkpoint_of(const dckpt::KeyMap& map, bool megatron) {
  dckpt::Metadata metadata{.files = {"data"}};
  for (const dckpt::MapRow& row : map.tensors) {
    std::vector<std::string> keys = megatron ? row.megatron_keys() : row.hf.keys;
    for (std::string& key : keys) {
      for (std::size_t at = key.find('{'); at != key.npos; at = key.find('{'))
        key.replace(at, key.find('}', at) + 1 - at, "0");
      dckpt::TensorStorageMetadata tensor{.key = key, .size = {6, 4}, .chunks = dckpt::BoxList(2)};
      tensor.chunks.push_back(dckpt::whole(tensor.size));
      tensor.places.push_back({0, 0, 96});
      metadata.tensors.push_back(std::move(tensor));
    }
  }
  return metadata;
}

}  // namespace

/// Reads bytes as a map. Problems are located inside the text. A map without problems reads back
/// from its printed form as the same map, and applying it ends in a result or an error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  const CheckedKeyMap checked = check_key_map({reinterpret_cast<const char*>(data), size});
  for (const ConfigProblem& problem : checked.problems) {
    if (problem.message.empty() || problem.place.line < 0 || problem.place.column < 0) std::abort();
  }
  if (!checked.problems.empty()) return 0;
  const CheckedKeyMap again = check_key_map(to_yaml(checked.map));
  if (!again.problems.empty() || !(again.map == checked.map)) std::abort();
  for (const bool megatron : {true, false}) {
    try {
      const MapNumbers numbers(checked.map, {}, {});
      const Metadata metadata = checkpoint_of(checked.map, megatron);
      const MappedKeys mapped = apply_key_map(checked.map, numbers, metadata);
      rearrange(metadata, mapped.tensors);
    } catch (const CheckpointError&) {
    }
  }
  return 0;
}
