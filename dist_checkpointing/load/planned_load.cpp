#include "dist_checkpointing/load/planned_load.h"

#include <algorithm>
#include <set>
#include <utility>

#include "dist_checkpointing/load/load_plan_messages.h"
#include "dist_checkpointing/planner/foreign_code.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/geometry/strided_copy.h"
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
                       [&] { return planner_.load_object(key, std::move(value)); });
  }

 private:
  const LoadPlanner& planner_;
  const std::string& who_;
};

/// Describes the problem of an item; empty if there is none.
std::string problem_of(const LoadItem& item, const std::vector<ShardedTensor>& wanted,
                       const LoadPlanner& planner) {
  if (item.target >= wanted.size())
    return str_format("is for tensor {} of the state, which has {}", item.target, wanted.size());
  const ShardedTensor& target = wanted[item.target];
  if (item.tensor.key.empty()) return str_format("for {} has no key", quote(target.key));
  if (item.tensor.data_shape() != target.data_shape())
    return str_format("has the shape {}, but the state's tensor {} has {}",
                      to_string(item.tensor.data_shape()), quote(target.key),
                      to_string(target.data_shape()));
  if (item.wanted != target.dtype)
    return str_format("says that {} is {}, but the state has {}; leave LoadItem::wanted as it is",
                      quote(target.key), to_string(item.wanted), to_string(target.dtype));
  if (item.tensor.dtype != target.dtype && !planner.resolves(item))
    return str_format(
        "reads {}, but the state's tensor is {}; resolves() must accept it, and "
        "commit_tensor() convert it",
        to_string(item.tensor.dtype), to_string(target.dtype));
  return "";
}

}  // namespace

PlannedLoad::PlannedLoad(std::unique_ptr<LoadPlanner> planner, const std::string& name,
                         bool plans_globally)
    : planner_(std::move(planner)), who_(planner_text(name)), plans_globally_(plans_globally) {}

std::unique_ptr<CheckpointReader> PlannedLoad::over(
    std::unique_ptr<CheckpointReader> reader) const {
  return std::make_unique<PlannedReader>(std::move(reader), *planner_, who_);
}

StateDict PlannedLoad::prepared(const StateDict& state, const Metadata& metadata,
                                const LoadOptions& options, const Communicator& comm) const {
  return run_foreign(who_, {.rank = comm.rank()}, [&] {
    StateDict made = planner_->prepare_state(
        state,
        {.metadata = metadata, .options = options, .rank = comm.rank(), .ranks = comm.size()});
    return made.is_none() ? Value::dict() : std::move(made);
  });
}

std::vector<std::optional<ShardedTensor>> PlannedLoad::plan(
    const std::vector<ShardedTensor>& wanted, const Metadata& metadata, const LoadOptions& options,
    Communicator& comm) {
  wanted_ = wanted;
  LoadPlan plan;
  agree(comm, "planning the load", [&] { plan = local_plan(metadata, options, comm); });
  if (plans_globally_) plan = global_plan(std::move(plan), comm);
  std::vector<std::optional<ShardedTensor>> asked(wanted_.size());
  agree(comm, "finishing the plan of the load", [&] {
    run_foreign(who_, {.rank = comm.rank()}, [&] {
      if (plans_globally_) check(plan);
      plan = planner_->finish_plan(std::move(plan));
      check(plan);
      for (const LoadItem& item : plan) {
        const std::string& key = item.tensor.key;
        (key == wanted_[item.target].key ? for_itself_ : for_others_).insert(key);
        asked[item.target] =
            run_foreign("", {.key = wanted_[item.target].key}, [&] { return asked_for(item); });
      }
      require_own_memory();
    });
  });
  return asked;
}

LoadPlan PlannedLoad::local_plan(const Metadata& metadata, const LoadOptions& options,
                                 const Communicator& comm) {
  return run_foreign(who_, {.rank = comm.rank()}, [&] {
    std::vector<ShardedTensor> described;
    described.reserve(wanted_.size());
    for (const ShardedTensor& tensor : wanted_) described.push_back(tensor.without_data());
    planner_->set_up_planner({.wanted = described,
                              .metadata = metadata,
                              .options = options,
                              .rank = comm.rank(),
                              .ranks = comm.size()});
    LoadPlan plan = planner_->create_local_plan();
    planner_->forget_setup();  // `described` ends here
    check(plan);
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

void PlannedLoad::check(const LoadPlan& plan) const {
  ProblemList problems;
  std::set<std::size_t> planned;
  for (const LoadItem& item : plan) {
    std::string problem = with_context({.key = item.tensor.key},
                                       [&] { return problem_of(item, wanted_, *planner_); });
    if (problem.empty() && !planned.insert(item.target).second)
      problem =
          str_format("is for {}, for which there is another item", quote(wanted_[item.target].key));
    if (!problem.empty()) problems.add(str_format("{} {}", quote(item.tensor.key), problem));
  }
  problems.raise_if_any(ErrorCode::kMismatch, "the planner's plan is not of this state:");
}

/// Returns the request, with the memory to read into.
ShardedTensor PlannedLoad::asked_for(const LoadItem& item) {
  const ShardedTensor& target = wanted_[item.target];
  ShardedTensor asked = item.tensor;
  if (asked.dtype == target.dtype) asked.data = target.data;
  if (!planner_->resolves(item) || target.numel() == 0) return asked;
  const Shape shape = target.data_shape();
  Tensor destination =
      target.data && target.data->has_data() ? *target.data : Tensor::empty(target.dtype, shape);
  if (destination.device().kind != Device::Kind::kCpu)
    throw_error(ErrorCode::kUnsupported, {.key = target.key},
                "a tensor that a planner resolves has to be in CPU memory; load it there "
                "and copy it");
  Tensor read = planner_->resolve_tensor(item, shape);
  if (read.dtype() != asked.dtype || read.shape() != shape || !read.is_contiguous() ||
      !read.has_data() || read.device().kind != Device::Kind::kCpu)
    throw_error(ErrorCode::kMismatch, {.key = target.key},
                "resolve_tensor() returned {}; contiguous memory of the CPU "
                "for {} {} is due",
                to_string(read), to_string(asked.dtype), to_string(shape));
  asked.data = Tensor(read.dtype(), shape, read.strides(), read.data(), nullptr);
  if (const std::string reason = unfit_to_load_into(destination); !reason.empty())
    throw_error(ErrorCode::kInvalidArgument, {.key = target.key}, "the destination " + reason);
  const auto [known, is_new] =
      resolved_.try_emplace(read.data(), Resolved{item, read, std::move(destination)});
  if (!is_new)
    throw_error(ErrorCode::kMismatch, {.key = target.key},
                "resolve_tensor() returned the memory that {} is read into",
                quote(wanted_[known->second.item.target].key));
  of_target_[item.target] = read.data();
  return asked;
}

/// Refuses resolved tensors that share memory: tied weights are compared with the data stored for
/// each, which is impossible after a planner has changed it.
void PlannedLoad::require_own_memory() const {
  std::vector<Tensor> memory;
  std::vector<std::size_t> targets;
  for (std::size_t target = 0; target < wanted_.size(); ++target) {
    const auto found = of_target_.find(target);
    const auto& data = wanted_[target].data;
    if (found != of_target_.end())
      memory.push_back(resolved_.at(found->second).destination);
    else if (data && data->has_data())
      memory.push_back(*data);
    else
      continue;
    targets.push_back(target);
  }
  for_each_overlap(memory, [&](std::size_t a, std::size_t b) {
    if (!of_target_.contains(targets[a]) && !of_target_.contains(targets[b])) return;
    throw_error(ErrorCode::kUnsupported, {.key = wanted_[targets[b]].key},
                "it is loaded into the memory of {}, but a planner fills "
                "tensors by itself; give each a tensor of its own",
                quote(wanted_[targets[a]].key));
  });
}

Tensor PlannedLoad::commit(const Tensor& destination) {
  Resolved& resolved = resolved_.at(destination.data());
  const Tensor& target = resolved.destination;
  const std::string& key = wanted_[resolved.item.target].key;
  return run_foreign(who_, {.key = key}, [&] {
    const Tensor made = planner_->commit_tensor(resolved.item, std::move(resolved.read));
    if (made.dtype() != target.dtype() || made.shape() != target.shape() || !made.is_contiguous() ||
        !made.has_data() || made.device().kind != Device::Kind::kCpu)
      throw_error(ErrorCode::kMismatch, {.key = key},
                  "commit_tensor() returned {}; {} {}, contiguous in CPU "
                  "memory, is due",
                  to_string(made), to_string(target.dtype()), to_string(target.shape()));
    if (made.data() != target.data())
      strided_copy(target.shape(), item_size(target.dtype()), made.data(),
                   {0, row_major_strides(target.shape())}, target.mutable_data(),
                   {0, target.strides()});
    resolved.committed = true;
    return target;
  });
}

ShardedTensor PlannedLoad::restored(std::size_t target, const ShardedTensor& loaded) const {
  ShardedTensor tensor = wanted_[target];
  if (tensor.dtype != loaded.dtype && tensor.numel() == 0) return tensor;
  const auto found = of_target_.find(target);
  if (found == of_target_.end()) {
    tensor.data = loaded.data;
  } else if (const Resolved& resolved = resolved_.at(found->second); resolved.committed) {
    tensor.data = resolved.destination;
  }
  return tensor;
}

}  // namespace dckpt
