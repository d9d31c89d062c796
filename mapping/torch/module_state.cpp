#include "mapping/torch/module_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <algorithm>
#include <memory>
#include <typeinfo>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/state/optimizer_slots.h"
#include "mapping/state/sharded_object.h"
#include "mapping/torch/generators.h"
#include "mapping/torch/known_optimizer.h"
#include "mapping/torch/optimizer_params.h"
#include "mapping/torch/tensor.h"

namespace dckpt::torch {
namespace {

using ::torch::nn::Module;
using ::torch::optim::LRScheduler;
using ::torch::optim::Optimizer;

// The keys of the tree.
constexpr char kModel[] = "model";
constexpr char kOptimizer[] = "optimizer";
constexpr char kGenerators[] = "rng_state";
constexpr char kScheduler[] = "lr_scheduler";
constexpr char kNew[] = "new_state";  ///< the optimizer's tensors that it does not have yet

[[noreturn]] void mismatch(const std::string& message, const std::string& key = {}) {
  throw CheckpointError(ErrorCode::kMismatch, message,
                        key.empty() ? ErrorContext{} : ErrorContext{.key = key});
}

const Value& part(const Value& state, const char* name, const char* remedy) {
  if (const Value* const found = state.find(name)) return *found;
  mismatch(str_format("the state has no {}; {}", quote(name), remedy));
}

/// Describes a tensor. The main replica is that of the first piece, of copy 0, on the first data
/// parallel rank.
ShardedTensor describe(const std::string& name, const at::Tensor& tensor,
                       const ModuleStateOptions& options, std::int64_t data_rank) {
  return with_context({.key = name}, [&] {
    const Sharding sharding = options.shard ? options.shard(name, tensor) : Replicate{};
    const std::string whole = options.whole_name ? options.whole_name(name) : name;
    if (const auto* const replicate = std::get_if<Replicate>(&sharding))
      return ShardedTensor::whole(whole, from_torch(tensor),
                                  {.replica_id = {replicate->copy, data_rank}});
    const auto& piece = std::get<RankOffsets>(sharding);
    return ShardedTensor::from_rank_offsets(
        whole, from_torch(tensor), piece.offsets,
        {.replica_id = {piece.copy, data_rank}, .prepend_axis_num = piece.prepend_axis_num});
  });
}

std::int64_t data_rank(const ModuleStateOptions& options) {
  return options.data_rank.value_or(options.rank);
}

template <typename Visit>
void visit_tensors(const Module& module, const Visit& visit) {
  for (const auto& item : module.named_parameters()) visit(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) visit(item.key(), item.value());
  }
}

Value model_state(const Module& module, const ModuleStateOptions& options) {
  Value state = Value::dict();
  visit_tensors(module, [&](const std::string& name, const at::Tensor& tensor) {
    ShardedTensor shard = describe(name, tensor, options, data_rank(options));
    shard.key = options.prefix + shard.key;
    state[name] = std::move(shard);
  });
  return state;
}

/// Returns the name of a fragment among those of one kind of state.
std::string place(const ParamFragment& fragment) {
  if (!fragment.range) return fragment.name;
  return str_format("{}[{}:{}]", fragment.name, fragment.range->begin, fragment.range->end);
}

std::string state_key(const char* slot, const std::string& name) {
  return str_format("{}.state.{}.{}", kOptimizer, slot, name);
}

/// Describes a tensor of the state, or the elements of it that a fragment has.
ShardedTensor describe_slot(const ShardedTensor& param, const ParamFragment& fragment,
                            const StateTensor& slot) {
  ShardedTensor whole = param;
  whole.flattened_range = fragment.range;
  const std::string key = state_key(slot.name, param.key);
  return with_context({.key = key}, [&] {
    ShardedTensor shard = shard_like(whole, key, slot.cut);
    const auto range = fragment.range;
    shard.data = from_torch(
        range ? slot.tensor->narrow(0, fragment.offset, range->end - range->begin) : *slot.tensor);
    shard.dtype = shard.data->dtype();
    shard.validate();
    return shard;
  });
}

/// Describes a number per parameter: along the axes that the local tensor lacks it is located where
/// the parameter is; all pieces along the other axes have it, and the first one saves it.
ShardedTensor describe_count(const ShardedTensor& param, const ParamFragment& fragment,
                             const char* slot, std::int64_t count) {
  ShardedTensor whole = param;
  whole.flattened_range = fragment.range;
  ShardedTensor shard = shard_like(whole, state_key(slot, param.key), StateCut::kNumber);
  shard.data = Tensor::zeros(DType::kInt64, {});
  shard.dtype = DType::kInt64;
  *shard.local_data<std::int64_t>() = count;
  shard.validate();
  return shard;
}

/// Makes a tensor of the state before the first step.
at::Tensor new_tensor(const StateTensor& slot, const at::Tensor& param) {
  if (slot.make) return slot.make(param);
  if (slot.cut == StateCut::kParam) return at::zeros_like(param, at::MemoryFormat::Preserve);
  const ShardedTensor state =
      shard_like(ShardedTensor::whole(slot.name, Tensor::meta(DType::kFloat32, param.sizes())),
                 slot.name, slot.cut);
  return at::zeros(at::IntArrayRef(state.local_shape.data(), state.local_shape.size()),
                   param.options().requires_grad(false));
}

/// Throws unless a slot can describe what the optimizer keeps for its parameter.
void require_whole(const OptimizerParam& param, const StateTensor& slot) {
  if (slot.cut == StateCut::kParam || param.is_whole()) return;
  throw_error(
      ErrorCode::kInvalidArgument, {.key = state_key(slot.name, param.fragments.front().name)},
      "the optimizer's parameter is a piece of the module's memory, for which there must be "
      "an element of the state for each of its elements; keep other state in OptimizerSlots"
      "::step or as common state");
}

const OptimizerKind::State* state_of(const Optimizer& optimizer, const at::Tensor& param) {
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : found->second.get();
}

/// Returns the name of the count. Without state, an optimizer that counts begins at 0; others begin
/// differently than with zeros.
const char* count_name(const OptimizerSlots& slots) {
  return slots.step == nullptr ? "initialized" : "step";
}

/// Returns whether a parameter gets state; a frozen one does not.
bool has_state(const Optimizer& optimizer, const OptimizerParam& param) {
  return state_of(optimizer, param.tensor) != nullptr ||
         std::ranges::any_of(param.fragments, [](const ParamFragment& fragment) {
           return fragment.param.requires_grad();
         });
}

const OptimizerKind::Options& options_of(const Optimizer& optimizer, std::size_t group) {
  return optimizer.param_groups()[group].options();
}

/// Returns the names of the parameters of each group, if they are the same on all ranks.
ValueList names_in_groups(const Optimizer& optimizer, const std::vector<OptimizerParam>& params) {
  std::vector<ValueList> names(optimizer.param_groups().size());
  for (const OptimizerParam& param : params)
    names[param.group].emplace_back(param.fragments.front().name);
  ValueList groups;
  for (ValueList& group : names) groups.push_back(Value::list(std::move(group)));
  return groups;
}

bool names_are_common(const ModuleStateOptions& options) {
  return !options.shard && !options.whole_name && !options.distributed_optimizer;
}

Value optimizer_state(const Module& module, const Optimizer& optimizer,
                      const ModuleStateOptions& options) {
  const OptimizerKind& known = kind_of(optimizer, options);
  const auto params = optimizer_params(module, optimizer, options.distributed_optimizer);
  Value state = Value::dict();
  Value missing = Value::dict();
  for (std::size_t number = 0; number < params.size(); ++number) {
    const OptimizerParam& param = params[number];
    if (!has_state(optimizer, param)) continue;
    const auto* const existing = state_of(optimizer, param.tensor);
    const auto state_or_new = existing == nullptr ? known.new_state() : existing->clone();
    const OptimizerSlots slots =
        known.slots(*state_or_new, options_of(optimizer, param.group), param.tensor);
    if (slots.tensors.empty()) continue;
    for (const StateTensor& slot : slots.tensors) {
      require_whole(param, slot);
      if (slot.tensor->defined()) continue;
      *slot.tensor = new_tensor(slot, param.tensor);
      missing[static_cast<std::int64_t>(number)][slot.name] = from_torch(*slot.tensor);
    }
    for (const ParamFragment& fragment : param.fragments) {
      const ShardedTensor shard = describe(fragment.name, fragment.param, options,
                                           options.distributed_optimizer ? 0 : data_rank(options));
      for (const StateTensor& slot : slots.tensors)
        state[slot.name][place(fragment)] = describe_slot(shard, fragment, slot);
      const char* const count = count_name(slots);
      state[count][place(fragment)] = describe_count(
          shard, fragment, count,
          slots.step == nullptr ? static_cast<std::int64_t>(existing != nullptr) : *slots.step);
    }
  }
  const ValueList names = names_in_groups(optimizer, params);
  ValueList groups;
  for (std::size_t group = 0; group < names.size(); ++group) {
    groups.push_back(known.to_value(options_of(optimizer, group)));
    if (names_are_common(options)) groups.back()["params"] = names[group];
  }
  Value result = Value::dict();
  result["name"] = known.name();
  result["param_groups"] = Value::list(std::move(groups));
  result["state"] = std::move(state);
  result[kNew] = LocalNonpersistentObject{std::move(missing)};
  return result;
}

/// Accesses the counter that LRScheduler shows to derived classes.
struct StepCount : LRScheduler {
  static unsigned& of(LRScheduler& scheduler) { return scheduler.*(&StepCount::step_count_); }
};

std::string type_of(const LRScheduler& scheduler) {
  return c10::demangle(typeid(scheduler).name());
}

StateDict sharded_state(const Module& module, const Optimizer* optimizer,
                        const ModuleStateOptions& options) {
  StateDict state = Value::dict();
  state[kModel] = model_state(module, options);
  if (optimizer != nullptr) state[kOptimizer] = optimizer_state(module, *optimizer, options);
  if (options.scheduler != nullptr) {
    state[kScheduler]["type"] = type_of(*options.scheduler);
    state[kScheduler]["step_count"] = StepCount::of(*options.scheduler);
  }
  if (options.rng) {
    ShardedObject generators{.key = kGenerators,
                             .data = generator_states(module),
                             .global_shape = {options.size},
                             .global_offset = {options.rank}};
    generators.validate();
    state[kGenerators] = std::move(generators);
  }
  return state;
}

const Tensor& loaded(const Value& leaves, const std::string& name, const std::string& key) {
  const Value* const leaf = leaves.find(name);
  if (leaf == nullptr)
    mismatch(
        "the state that is to be restored lacks this tensor; make it with sharded_state() of "
        "the same module, optimizer and options",
        key);
  return with_context({.key = key}, [&]() -> const Tensor& { return leaf->as_tensor(); });
}

/// Copies a tensor unless a load has filled it itself.
void copy_if_elsewhere(const Tensor& from, const at::Tensor& to, const std::string& key) {
  const Tensor target = from_torch(to);
  if (from.dtype() != target.dtype() || from.shape() != target.shape() || !from.has_data() ||
      !target.has_data()) {
    const auto text = [](const Tensor& tensor) {
      return to_string(tensor) + (tensor.has_data() ? "" : " without elements");
    };
    mismatch(str_format("the state has {}, expected {}", text(from), text(target)), key);
  }
  if (from.data() == target.data() && from.strides() == target.strides()) return;
  const at::NoGradGuard no_grad;
  to.copy_(to_torch(from));
}

void restore_module(const Module& module, const StateDict& state) {
  const Value& leaves = part(state, kModel, "make it with sharded_state()");
  visit_tensors(module, [&](const std::string& name, const at::Tensor& tensor) {
    copy_if_elsewhere(loaded(leaves, name, name), tensor, name);
  });
}

/// The state that a parameter of the optimizer gets.
struct NewState {
  const OptimizerParam* param = nullptr;
  std::int64_t number = 0;
  std::int64_t count = 0;
};

struct CheckedOptimizer {
  const OptimizerKind& known;
  std::vector<OptimizerParam> params;
  std::vector<NewState> states{};
  std::vector<std::unique_ptr<OptimizerKind::Options>> groups{};
};

/// Checks the options of each group, if they go with state of the same form.
void check_groups(const Optimizer& optimizer, const Value& saved, const ModuleStateOptions& options,
                  CheckedOptimizer& checked) {
  const ValueList& groups = saved.at("param_groups").items();
  const std::size_t expected = optimizer.param_groups().size();
  if (groups.size() != expected) {
    mismatch(str_format("the checkpoint's optimizer has {} parameter groups, this one has {}",
                        groups.size(), expected));
  }
  const ValueList names = names_in_groups(optimizer, checked.params);
  const auto sorted = [](const ValueList& items) {
    std::vector<std::string> texts;
    for (const Value& item : items) texts.push_back(item.as_str());
    std::ranges::sort(texts);
    return texts;
  };
  for (std::size_t group = 0; group < expected; ++group) {
    const auto& current = options_of(optimizer, group);
    auto next = current.clone();
    with_context({.key = str_format("{}.param_groups[{}]", kOptimizer, group)}, [&] {
      checked.known.assign(*next, groups[group]);
      const Value* const stored_names = groups[group].find("params");
      if (stored_names != nullptr && names_are_common(options) &&
          sorted(stored_names->items()) != sorted(names[group].items())) {
        mismatch(str_format("the group has the parameters {} in the checkpoint, and {} here",
                            quoted_list(sorted(stored_names->items())),
                            quoted_list(sorted(names[group].items()))));
      }
      const auto state = checked.known.new_state();
      const auto of_group = [&](const OptimizerParam& param) { return param.group == group; };
      const auto some = std::ranges::find_if(checked.params, of_group);
      if (some == checked.params.end()) return;
      const auto stored = checked.known.slots(*state, *next, some->tensor).names();
      const auto wanted = checked.known.slots(*state, current, some->tensor).names();
      if (stored != wanted) {
        mismatch(
            str_format("the checkpoint's options keep {} for each parameter, those of this "
                       "optimizer {}; make it with the checkpoint's options",
                       quoted_list(stored), quoted_list(wanted)));
      }
    });
    checked.groups.push_back(std::move(next));
  }
}

CheckedOptimizer check_optimizer(const Module& module, const Optimizer& optimizer,
                                 const StateDict& state, const ModuleStateOptions& options) {
  CheckedOptimizer checked{
      .known = kind_of(optimizer, options),
      .params = optimizer_params(module, optimizer, options.distributed_optimizer)};
  const Value& saved =
      part(state, kOptimizer, "make it with sharded_state() of module and optimizer");
  require_same_optimizer(optimizer, options, state);
  check_groups(optimizer, saved, options, checked);
  for (std::size_t number = 0; number < checked.params.size(); ++number) {
    const OptimizerParam& param = checked.params[number];
    const auto placeholder = checked.known.new_state();
    const OptimizerSlots slots =
        checked.known.slots(*placeholder, options_of(optimizer, param.group), param.tensor);
    if (slots.tensors.empty() || !has_state(optimizer, param)) continue;
    NewState next{.param = &param, .number = static_cast<std::int64_t>(number)};
    const char* const count = count_name(slots);
    for (const ParamFragment& fragment : param.fragments) {
      const std::string key = state_key(count, fragment.name);
      const Tensor& leaf = loaded(part(saved.at("state"), count, "it has another optimizer's"),
                                  place(fragment), key);
      const std::int64_t own =
          with_context({.key = key}, [&] { return *leaf.data<std::int64_t>(); });
      if (&fragment != param.fragments.data() && own != next.count) {
        mismatch(
            str_format("one parameter of the optimizer extends over {} and {}, which have "
                       "made {} and {} steps in the checkpoint",
                       quote(param.fragments.front().name), quote(fragment.name), next.count, own));
      }
      next.count = own;
    }
    checked.states.push_back(next);
  }
  return checked;
}

void restore_optimizer(Optimizer& optimizer, const Value& saved, CheckedOptimizer& checked) {
  for (std::size_t group = 0; group < checked.groups.size(); ++group)
    checked.known.assign(optimizer.param_groups()[group].options(),
                         checked.known.to_value(*checked.groups[group]));
  const Value* fresh = saved.find(kNew);
  if (fresh != nullptr && fresh->is(Value::Kind::kLocalNonpersistentObject))
    fresh = &fresh->as_local_nonpersistent().value;
  for (const auto& [param, number, count] : checked.states) {
    auto& target = optimizer.state()[param->tensor.unsafeGetTensorImpl()];
    if (!target) target = checked.known.new_state();
    const OptimizerSlots slots =
        checked.known.slots(*target, options_of(optimizer, param->group), param->tensor);
    const Value* const own = fresh == nullptr ? nullptr : fresh->find(number);
    for (const StateTensor& slot : slots.tensors) {
      at::Tensor& tensor = *slot.tensor;
      const Value* const made = own == nullptr ? nullptr : own->find(slot.name);
      if (!tensor.defined())
        tensor = made == nullptr ? new_tensor(slot, param->tensor) : to_torch(made->as_tensor());
      for (const ParamFragment& fragment : param->fragments) {
        const auto range = fragment.range;
        const std::string key = state_key(slot.name, fragment.name);
        copy_if_elsewhere(
            loaded(saved.at("state").at(slot.name), place(fragment), key),
            range ? tensor.narrow(0, fragment.offset, range->end - range->begin) : tensor, key);
      }
    }
    if (slots.step != nullptr)
      *slots.step = count;
    else if (count == 0)
      optimizer.state().erase(param->tensor.unsafeGetTensorImpl());
  }
}

void check_scheduler(const StateDict& state, const LRScheduler& scheduler) {
  const Value& saved = part(state, kScheduler, "make it with sharded_state() and the scheduler");
  const std::string& type = saved.at("type").as_str();
  if (type != type_of(scheduler))
    mismatch(str_format("the checkpoint is of the scheduler {}, this one is {}", quote(type),
                        quote(type_of(scheduler))));
  saved.at("step_count").as_int();
}

void restore(Module& module, Optimizer* optimizer, const StateDict& state,
             const ModuleStateOptions& options) {
  std::optional<CheckedOptimizer> checked;
  if (optimizer != nullptr) checked.emplace(check_optimizer(module, *optimizer, state, options));
  if (options.scheduler != nullptr) check_scheduler(state, *options.scheduler);
  const Value* generators = nullptr;
  if (options.rng) {
    generators = &part(state, kGenerators, "make it with the same options as restore()");
    if (generators->is(Value::Kind::kShardedObject))
      generators = &generators->as_sharded_object().data;
  }
  restore_module(module, state);
  if (checked) restore_optimizer(*optimizer, state.at(kOptimizer), *checked);
  if (generators != nullptr) set_generator_states(module, *generators);
  if (options.scheduler != nullptr)
    StepCount::of(*options.scheduler) =
        static_cast<unsigned>(state.at(kScheduler).at("step_count").as_int());
}

}  // namespace

StateDict sharded_state(const Module& module, const Optimizer& optimizer,
                        const ModuleStateOptions& options) {
  return sharded_state(module, &optimizer, options);
}

StateDict sharded_state(const Module& module, const ModuleStateOptions& options) {
  return sharded_state(module, nullptr, options);
}

void restore(Module& module, Optimizer& optimizer, const StateDict& state,
             const ModuleStateOptions& options) {
  restore(module, &optimizer, state, options);
}

void restore(Module& module, const StateDict& state, const ModuleStateOptions& options) {
  restore(module, nullptr, state, options);
}

}  // namespace dckpt::torch
