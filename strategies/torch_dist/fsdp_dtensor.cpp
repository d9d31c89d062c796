#include "strategies/torch_dist/fsdp_dtensor.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::string_view kModel = "model.module.";
constexpr std::string_view kGroups = "optimizer.param_to_group_meta.";
constexpr std::string_view kRng = "rng_state.(";
constexpr std::string_view kLayers = ".decoder.layers.";

/// The decimal number at the beginning of a text.
std::optional<std::uint64_t> leading_number(std::string_view text) {
  return parse_u64(text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size())));
}

/// The layers that weights belong to: one more than the last, so that gaps do not matter.
std::uint64_t count_layers(const Metadata& metadata) {
  std::uint64_t count = 0;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    const std::string_view key = tensor.key;
    const std::size_t found = key.find(kLayers);
    if (!key.starts_with(kModel) || found == std::string_view::npos) continue;
    if (const auto layer = leading_number(key.substr(found + kLayers.size())))
      count = std::max(count, *layer + 1);
  }
  return count;
}

/// A member of argparse's Namespace; empty if it is no integer.
std::optional<std::int64_t> argument(const Value& args, const char* name) {
  if (!args.is(Value::Kind::kOpaque) || args.as_opaque().states.size() != 1) return std::nullopt;
  const Value* const found = args.as_opaque().states.front().find(name);
  return found != nullptr && found->is_int() ? std::optional(found->as_int()) : std::nullopt;
}

}  // namespace

bool is_fsdp_dtensor(const Metadata& metadata) {
  const auto begins = [](std::string_view prefix) {
    return [prefix](const auto& entry) { return entry.key.starts_with(prefix); };
  };
  return std::ranges::any_of(metadata.tensors, begins(kModel)) &&
         (std::ranges::any_of(metadata.objects, begins(kGroups)) ||
          std::ranges::find(metadata.objects, "checkpoint_version", &BytesStorageMetadata::key) !=
              metadata.objects.end());
}

std::size_t count_pipeline_stages(const Metadata& metadata) {
  std::set<std::uint64_t> stages;
  const auto see = [&](std::string_view key) {
    if (!key.starts_with(kRng)) return;
    if (const auto stage = leading_number(key.substr(kRng.size()))) stages.insert(*stage);
  };
  for (const TensorStorageMetadata& tensor : metadata.tensors) see(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) see(object.key);
  return stages.size();
}

void check_layers(const Metadata& metadata, const Value& args) {
  const std::uint64_t found = count_layers(metadata);
  const auto expected = argument(args, "num_layers");
  const std::size_t stages = count_pipeline_stages(metadata);
  if (stages < 2 || !expected || found == 0 || found >= static_cast<std::uint64_t>(*expected))
    return;
  throw CheckpointError(
      ErrorCode::kUnsupported,
      str_format("the model has {} layers, but the checkpoint only {}, and {} pipeline stages have "
                 "saved it: Megatron-FSDP has numbered the layers of each stage from 0, and the "
                 "stages have overwritten each other's. The other layers are lost; to look at what "
                 "is there, use a policy with load: {{backend: {{name: fsdp_dtensor, options: "
                 "{{stage_local: keep}}}}}} (--policy FILE of dckpt inspect, verify, digest, "
                 "explain, extract and convert)",
                 *expected, found, stages));
}

}  // namespace dckpt
