#include "migration/rank_folders/joined_state.h"

#include <set>
#include <string>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/megatron/model_keys.h"

namespace dckpt {

std::vector<RearrangedObject> joined_objects(const RankFiles& files, const JoinedModel& model) {
  std::vector<RearrangedObject> objects;
  std::set<std::string> keys;
  std::size_t rng_states_left_out = 0;
  const auto add = [&](std::string key, Value value) {
    if (keys.insert(key).second)
      objects.push_back({.key = std::move(key), .value = std::move(value)});
  };
  for (std::size_t i = 0; i < files.files().size(); ++i) {
    if (!files.files()[i].is_main || !files.state(i).is_dict()) continue;
    const ModelParallelRank& rank = files.files()[i].rank;
    const RankFiles::Loaded loaded = files.load(i);
    for (const auto& [name, value] : loaded.state.as_dict()) {
      if (!name.is_str()) continue;
      const auto path_of_model = split_model_path(name.as_str() + ".");
      const auto* const entries = path_of_model ? mapping_items(value) : nullptr;
      if (entries == nullptr) continue;
      for (const auto& [path, extra] : *entries) {
        if (!path.is_str()) continue;
        ModelKey key = model.parse_key(path.as_str());
        if (!key.name.ends_with(kExtraStateSuffix) ||
            (key.name == kOutputExtraState && extra.is_none()))
          continue;
        if (rank.tensor == 0)
          add(model.object_key(std::move(key), path_of_model->first, rank),
              loaded.with_tensors(extra));
      }
    }
    if (files.state(i).find("rng_state") == nullptr) continue;
    if (rank.expert > 0)
      ++rng_states_left_out;
    else
      add(str_format("rng_state/shard_{}.{}_{}.{}", rank.pipeline, rank.tensor,
                     files.sizes().pipeline, files.sizes().tensor),
          loaded.with_tensors(loaded.state.at("rng_state")));
  }
  if (rng_states_left_out > 0)
    log_warning(
        str_format("rng_state of {} is left out: there is one for each tensor and "
                   "pipeline rank, that of the first expert-parallel rank",
                   counted(rng_states_left_out, "folder")));
  return objects;
}

Value joined_common_state(const RankFiles& files, bool has_optimizer) {
  Value made = Value::dict();
  const RankFiles::Loaded loaded = files.load(files.main());
  for (const auto& [name, value] : loaded.state.as_dict()) {
    const bool elsewhere =
        name.is_str() && (split_model_path(name.as_str() + ".") || name.as_str() == "rng_state" ||
                          (name.as_str() == "optimizer" && !has_optimizer));
    if (!elsewhere) made.mutable_dict().set(name, loaded.with_tensors(value));
  }
  if (!has_optimizer) {
    if (files.state(files.main()).find("optimizer") != nullptr)
      log_warning(
          "the optimizer's state is left out: it is not that of Megatron's distributed optimizer, "
          "and which of its tensors belongs to which parameter is not stored");
    return made;
  }
  const Value sharding("fully_sharded_model_space");
  Value& optimizer = made["optimizer"];
  if (optimizer.is_list()) {  // a chain
    Value members = Value::dict();
    for (std::size_t i = 0; i < optimizer.items().size(); ++i)
      members.mutable_dict().set(i, optimizer.items()[i]);
    optimizer = members;
    for (std::size_t i = 0; i < optimizer.size(); ++i)
      optimizer.mutable_dict().value_at(i).mutable_dict().set("param_state_sharding_type",
                                                              sharding);
  } else {
    optimizer.mutable_dict().set("param_state_sharding_type", sharding);
  }
  made["content_metadata"] = Value::dict({{"distrib_optim_sharding_type", sharding},
                                          {"singleton_local_shards", false},
                                          {"chained_optim_avoid_prefix", true}});
  return made;
}

}  // namespace dckpt
