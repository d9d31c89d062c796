#include "dist_checkpointing/load/empty_state_dict_planner.h"

#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "dist_checkpointing/load/select_keys.h"
#include "dist_checkpointing/open/key_groups.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"

namespace dckpt {
namespace {

Value leaf_of(const TensorStorageMetadata& tensor, int rank) {
  return ShardedTensor::whole(tensor.key,
                              Tensor::meta(tensor.properties.dtype, tensor.global_shape()),
                              {.replica_id = rank});
}

Value leaf_of(const BytesStorageMetadata& object, int rank) {
  auto sharded = ShardedObject::parse_unique_key(object.key);
  if (!sharded) return {};
  sharded->replica_id = rank;
  return *std::move(sharded);
}

}  // namespace

StateDict EmptyStateDictLoadPlanner::prepare_state(StateDict state, const LoadSetup& setup) {
  if (state.size() != 0)
    throw_error(ErrorCode::kInvalidArgument,
                "it is for an empty state dict, which what is stored is put "
                "into, but this one has {}; load it without this planner",
                counted(state.size(), "entry", "entries"));
  const Metadata& stored = setup.metadata;
  std::set<std::string> unused;
  const std::vector<SelectedKey> chosen = select_keys(stored, keys_, unused);
  std::unordered_map<std::string_view, Value> leaves;
  std::set<std::string> known;
  for (const TensorStorageMetadata& tensor : stored.tensors)
    leaves.emplace(tensor.key, leaf_of(tensor, setup.rank));
  for (const BytesStorageMetadata& object : stored.objects)
    leaves.emplace(object.key, leaf_of(object, setup.rank));
  if (!unused.empty()) {
    for (const auto& [key, leaf] : leaves) known.emplace(key);
    throw_error(ErrorCode::kMismatch,
                "nothing that is stored is called so; leave out "
                "such keys, or correct them:" +
                    table_of_unknown(unused, known));
  }
  std::vector<std::pair<KeyPath, Value>> placed;
  for (const SelectedKey& entry : chosen)
    placed.emplace_back(entry.path, std::move(leaves.at(entry.key)));
  return placed.empty() ? Value::dict() : unflatten_state_dict(placed);
}

}  // namespace dckpt
