#include "dist_checkpointing/load/planned_load.h"

#include <utility>

#include "dist_checkpointing/load/load_plan_messages.h"
#include "dist_checkpointing/planner/foreign_code.h"
#include "dist_checkpointing/planner/load_plan_checks.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/geometry/box.h"
#include "mapping/state/destination.h"
#include "mapping/state/overlaps.h"
#include "strategies/comm/agree.h"
#include "strategies/contract/forwarding_reader.h"

namespace dckpt {
namespace {

class PlannedReader final : public ForwardingReader {
 public:
  PlannedReader(std::shared_ptr<const CheckpointReader> source, const LoadPlanner& planner,
                const std::string& who)
      : ForwardingReader(std::move(source)), planner_(planner), who_(who) {}

  Value decode_object(std::size_t object, ByteView stored) const override {
    Value value = source_->decode_object(object, stored);
    const std::string& key = metadata().objects[object].key;
    return run_foreign(who_, {.key = key},
                       [&] { return planner_.load_bytes(key, std::move(value)); });
  }

 private:
  const LoadPlanner& planner_;
  const std::string& who_;
};

}  // namespace

PlannedLoad::PlannedLoad(std::unique_ptr<LoadPlanner> planner, const Location& location,
                         const LoadOptions& options)
    : planner_(std::move(planner)),
      location_(location),
      options_(options),
      who_(planner_text(options.registered_planner.name)) {}

std::unique_ptr<CheckpointReader> PlannedLoad::over(
    std::unique_ptr<CheckpointReader> reader) const {
  return std::make_unique<PlannedReader>(std::move(reader), *planner_, who_);
}

StateDict PlannedLoad::prepared(const StateDict& state, const Metadata& metadata,
                                const Communicator& comm) const {
  return run_foreign(who_, {.rank = comm.rank()}, [&] {
    StateDict made = planner_->prepare_state(state, {.wanted = {},
                                                     .metadata = metadata,
                                                     .location = location_,
                                                     .options = options_,
                                                     .rank = comm.rank(),
                                                     .ranks = comm.size()});
    return made.is_none() ? Value::dict() : std::move(made);
  });
}

std::vector<std::vector<ShardedTensor>> PlannedLoad::plan(const std::vector<ShardedTensor>& wanted,
                                                          const Metadata& metadata,
                                                          Communicator& comm) {
  wanted_ = wanted;
  const bool decides_on_rank_0 = plans_globally(options_);
  LoadPlan plan;
  agree(comm, "planning the load", [&] { plan = local_plan(metadata, comm); });
  if (decides_on_rank_0) plan = global_plan(std::move(plan), comm);
  std::vector<std::vector<ShardedTensor>> asked(wanted_.size());
  agree(comm, "finishing the plan of the load", [&] {
    run_foreign(who_, {.rank = comm.rank()}, [&] {
      if (decides_on_rank_0) check_load_plan(plan, wanted_, *planner_);
      plan = planner_->finish_plan(std::move(plan));
      check_load_plan(plan, wanted_, *planner_);
      std::vector<std::size_t> items(wanted_.size());
      for (const LoadItem& item : plan) ++items[item.target];
      for (const LoadItem& item : plan) {
        const std::string& key = item.tensor.key;
        const std::string& target = wanted_[item.target].key;
        (key == target ? for_itself_ : for_others_).insert(key);
        asked[item.target].push_back(run_foreign(
            "", {.key = target}, [&] { return asked_for(item, items[item.target] == 1); }));
      }
      require_own_memory();
    });
  });
  return asked;
}

LoadPlan PlannedLoad::local_plan(const Metadata& metadata, const Communicator& comm) {
  return run_foreign(who_, {.rank = comm.rank()}, [&] {
    planner_->set_up_planner({.wanted = wanted_,
                              .metadata = metadata,
                              .location = location_,
                              .options = options_,
                              .rank = comm.rank(),
                              .ranks = comm.size()});
    LoadPlan plan = planner_->create_local_plan();
    planner_->forget_setup();
    check_load_plan(plan, wanted_, *planner_);
    return plan;
  });
}

/// Returns this rank's part of the planner's global plan, which rank 0 makes from the plans of all
/// ranks.
LoadPlan PlannedLoad::global_plan(LoadPlan plan, Communicator& comm) const {
  Bytes mine;
  agree(comm, "planning the load", [&] { mine = encode(plan); });
  const std::vector<Bytes> all = comm.gather(mine, 0);
  std::vector<Bytes> answers;
  decide(comm, [&] {
    std::vector<LoadPlan> plans;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      plans.push_back(with_context({.rank = static_cast<int>(rank)},
                                   [&] { return decode_load_plan(all[rank]); }));
    run_foreign(who_, {.rank = comm.rank()}, [&] {
      plans = planner_->create_global_plan(std::move(plans));
      if (plans.size() != all.size())
        throw_error(ErrorCode::kMismatch,
                    "create_global_plan() returned {} for {}; one for each rank is due",
                    counted(plans.size(), "plan"), counted(all.size(), "rank"));
    });
    for (const LoadPlan& of_rank : plans) answers.push_back(encode(of_rank));
  });
  const Bytes answer = comm.scatter(answers, 0);
  agree(comm, "accepting the plan of the load", [&] { plan = decode_load_plan(answer); });
  return plan;
}

/// Returns the request of an item, with the memory to read into.
ShardedTensor PlannedLoad::asked_for(const LoadItem& item, bool is_alone) {
  const ShardedTensor& target = wanted_[item.target];
  ShardedTensor asked = item.tensor.without_data();
  const bool resolves = planner_->resolves(item);
  const bool fits = asked.dtype == target.dtype && asked.data_shape() == target.data_shape();
  if (target.numel() == 0) {
    if (!fits) {  // nothing is made of what would be read
      asked.local_shape.assign(asked.local_shape.size(), 0);
      asked.flattened_range.reset();
    }
    return asked;
  }
  if (is_alone && !resolves && !item.part) {
    if (fits) asked.data = target.data;
    return asked;
  }
  Part& part = part_of(item);
  if (!resolves) {
    asked.data = part.memory;
    add_destination(part.memory, part);
    return asked;
  }
  if (part.memory.device().kind != Device::Kind::kCpu)
    throw_error(ErrorCode::kUnsupported, {.key = target.key},
                "a tensor that a planner resolves has to be in CPU memory; load it there "
                "and copy it");
  Tensor read = memory_for(*planner_, item);
  asked.data = Tensor(read.dtype(), read.shape(), read.strides(), read.data(), nullptr);
  part.items.push_back(item);
  part.read.push_back(std::move(read));
  add_destination(*asked.data, part);
  return asked;
}

/// Returns the part that an item fills; it is new for the first of its items.
PlannedLoad::Part& PlannedLoad::part_of(const LoadItem& item) {
  const ShardedTensor& target = wanted_[item.target];
  const auto [known, is_new] = filled_.try_emplace(item.target);
  Filled& filled = known->second;
  if (is_new) {
    filled.target = item.target;
    filled.memory = target.data && target.data->has_data()
                        ? *target.data
                        : Tensor::zeros(target.dtype, target.data_shape());
    if (const std::string reason = unfit_to_load_into(filled.memory); !reason.empty())
      throw_error(ErrorCode::kInvalidArgument, {.key = target.key}, "the destination " + reason);
  }
  const Box box = part_box(item, target.data_shape());
  const auto [part, is_first] = filled.parts.try_emplace({box.offsets, box.sizes}, filled,
                                                         dckpt::part_of(filled.memory, item));
  if (is_first) ++filled.missing;
  return part->second;
}

void PlannedLoad::add_destination(const Tensor& memory, Part& part) {
  const auto [known, is_new] = parts_.try_emplace(memory.data(), &part);
  if (!is_new)
    throw_error(ErrorCode::kMismatch, {.key = wanted_[part.of.target].key},
                "resolve_tensor() returned the memory that {} is read into",
                quote(wanted_[known->second->of.target].key));
  ++part.missing;
}

/// Refuses filled tensors that share memory: tied weights are compared with the data stored for
/// each, which is impossible after a planner has changed it.
void PlannedLoad::require_own_memory() const {
  std::vector<Tensor> memory;
  std::vector<std::size_t> targets;
  for (std::size_t target = 0; target < wanted_.size(); ++target) {
    const auto found = filled_.find(target);
    const auto& data = wanted_[target].data;
    if (found != filled_.end())
      memory.push_back(found->second.memory);
    else if (data && data->has_data())
      memory.push_back(*data);
    else
      continue;
    targets.push_back(target);
  }
  for_each_overlap(memory, [&](std::size_t a, std::size_t b) {
    if (!filled_.contains(targets[a]) && !filled_.contains(targets[b])) return;
    throw_error(ErrorCode::kUnsupported, {.key = wanted_[targets[b]].key},
                "it is loaded into the memory of {}, but a planner fills "
                "tensors by itself; give each a tensor of its own",
                quote(wanted_[targets[a]].key));
  });
}

std::optional<ShardedTensor> PlannedLoad::arrived(const Tensor& destination) {
  Part& part = *parts_.at(destination.data());
  if (--part.missing > 0) return std::nullopt;
  Filled& filled = part.of;
  if (!part.items.empty())
    run_foreign(who_, {.key = wanted_[filled.target].key},
                [&] { commit_part(*planner_, part.items, std::move(part.read), part.memory); });
  filled.any = true;
  if (--filled.missing > 0) return std::nullopt;
  ShardedTensor complete = wanted_[filled.target];
  complete.data = filled.memory;
  return complete;
}

ShardedTensor PlannedLoad::restored(std::size_t target, const ShardedTensor& loaded) const {
  ShardedTensor tensor = wanted_[target];
  const auto found = filled_.find(target);
  if (found != filled_.end()) {
    if (found->second.any) tensor.data = found->second.memory;
  } else if (tensor.numel() != 0) {
    tensor.data = loaded.data;
  } else if (!tensor.data) {
    tensor.data = Tensor::empty(tensor.dtype, tensor.data_shape());
  }
  return tensor;
}

}  // namespace dckpt
