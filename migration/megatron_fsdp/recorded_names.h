#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

inline constexpr std::string_view kRng = "rng_state";                        ///< key in both
inline constexpr const char* kShardingType = "distrib_optim_sharding_type";  ///< key in both

/// The part of Megatron-FSDP's keys that does not follow from Megatron-Core's. A conversion to
/// Megatron-Core's keys records it in the common state where it differs from what is usual for such
/// a model, so that the conversion back gives every tensor its key again.
struct FsdpNames {
  int wrappers = 2;                ///< "module." in front of the keys of the optimizer's state
  bool local_norms = false;        ///< norms have the names of Megatron's local layers
  bool grouped = true;             ///< experts are one module
  std::set<std::string> halves{};  ///< keys of Megatron-Core that are stored in halves
  std::set<std::string> others{};  ///< keys of tensors outside of the model
  /// Entries of the common state, by dotted path, that only Megatron-Core's form has.
  std::set<std::string> added{};
  bool added_extra_state = false;  ///< empty extra state was added

  bool operator==(const FsdpNames&) const = default;
};

/// The usual names for a model with Megatron-Core's keys: Megatron puts one more module around a
/// model in half precision, whose dtype `args` or else the weights say.
FsdpNames usual_fsdp_names(const Metadata& core, const Value* args);

/// The part of Megatron-Core's keys that does not follow from Megatron-FSDP's.
struct CoreNames {
  /// Prefixes of chained optimizers, by weight: "chained_1." for K if the state of K is
  /// "chained_1.optimizer.state.exp_avg.K".
  std::map<std::string, std::string> chains{};
  std::set<std::string> without_main{};  ///< weights that have state but no main parameter
};

/// Removes the record from the common state and returns it. An invalid record counts as none.
std::optional<FsdpNames> take_fsdp_names(Value& common);
CoreNames take_core_names(Value& common);
void record(const FsdpNames& names, Value& common);
void record(const CoreNames& names, Value& common);

/// Removes an entry by its dotted path, and the dicts that are empty without it.
void remove_entry(Value& tree, std::string_view path);

}  // namespace dckpt
