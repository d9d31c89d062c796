#include "migration/maps/arrangement/element_type.h"

#include <algorithm>
#include <array>

#include "mapping/base/text.h"
#include "strategies/views/converted_reader.h"

namespace dckpt {
namespace {

/// Megatron's keys of weights that models keep in float32 beside others of 16 bits: biases of
/// routers, and the decay, the skip connection and the step of state space layers and delta nets.
constexpr std::array<const char*, 6> kPrecise{
    "*.router.expert_bias", "*.mixer.A_log",          "*.mixer.D",
    "*.mixer.dt_bias",      "*.self_attention.A_log", "*.self_attention.dt_bias"};

}  // namespace

std::string why_type_stays(const MapRow& row, KeyNames to, DType stored, DType wanted) {
  if (to == KeyNames::kMegatron ? row.cast.of_left() : row.cast.hf)
    return "the map says their type";
  if (!is_convertible(stored)) return "only floats of 16, 32 and 64 bits are cast";
  const bool is_precise = std::ranges::any_of(
      kPrecise, [&](const char* pattern) { return glob_match(pattern, row.megatron); });
  if (is_precise && !comes_back(stored, wanted)) return "models need their digits";
  return {};
}

}  // namespace dckpt
