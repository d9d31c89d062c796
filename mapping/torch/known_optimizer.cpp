#include "mapping/torch/known_optimizer.h"

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <typeinfo>

#include "mapping/base/error.h"

namespace dckpt::torch {
namespace {

using namespace ::torch::optim;

// The functions for each kind visit its options by name, and the state of a parameter under them.

template <typename Options, typename Visit>
void visit_adam(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

void visit_options(AdamOptions& options, const auto& visit) {
  visit_adam(options, visit);
}

void visit_options(AdamWOptions& options, const auto& visit) {
  visit_adam(options, visit);
}

void visit_options(SGDOptions& options, const auto& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}

void visit_options(RMSpropOptions& options, const auto& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}

void visit_options(AdagradOptions& options, const auto& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}

template <typename State>
OptimizerSlots adam_slots(State& state, bool amsgrad) {
  OptimizerSlots slots{{{"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}},
                       &state.step()};
  if (amsgrad) slots.tensors.push_back({"max_exp_avg_sq", &state.max_exp_avg_sq()});
  return slots;
}

OptimizerSlots slots_of(AdamParamState& state, const AdamOptions& options) {
  return adam_slots(state, options.amsgrad());
}

OptimizerSlots slots_of(AdamWParamState& state, const AdamWOptions& options) {
  return adam_slots(state, options.amsgrad());
}

OptimizerSlots slots_of(SGDParamState& state, const SGDOptions& options) {
  if (options.momentum() == 0) return {};
  return {{{"momentum_buffer", &state.momentum_buffer()}}};
}

OptimizerSlots slots_of(RMSpropParamState& state, const RMSpropOptions& options) {
  OptimizerSlots slots{{{"square_avg", &state.square_avg()}}, &state.step()};
  if (options.momentum() > 0)
    slots.tensors.push_back({"momentum_buffer", &state.momentum_buffer()});
  if (options.centered()) slots.tensors.push_back({"grad_avg", &state.grad_avg()});
  return slots;
}

OptimizerSlots slots_of(AdagradParamState& state, const AdagradOptions& /*options*/) {
  return {{{"sum", &state.sum()}}, &state.step()};
}

Value value_of(const std::tuple<double, double>& pair) {
  return Value::tuple({std::get<0>(pair), std::get<1>(pair)});
}
Value value_of(double number) {
  return number;
}
Value value_of(bool flag) {
  return flag;
}

void take(std::tuple<double, double>& pair, const Value& value) {
  if (!value.is_sequence() || value.items().size() != 2)
    throw_error(ErrorCode::kInvalidArgument, "expected two numbers");
  pair = {value.items()[0].as_float(), value.items()[1].as_float()};
}
void take(double& number, const Value& value) {
  number = value.as_float();
}
void take(bool& flag, const Value& value) {
  flag = value.as_bool();
}

template <typename KindOptions, typename KindState>
class Known final : public OptimizerKind {
 public:
  explicit Known(const char* name) : name_(name) {}
  const char* name() const override { return name_; }
  std::unique_ptr<State> new_state() const override { return std::make_unique<KindState>(); }
  OptimizerSlots slots(State& state, const Options& options,
                       const at::Tensor& /*param*/) const override {
    return slots_of(static_cast<KindState&>(state), static_cast<const KindOptions&>(options));
  }
  Value to_value(const Options& options) const override {
    KindOptions copy = static_cast<const KindOptions&>(options);
    Value value = Value::dict();
    visit_options(copy,
                  [&](const char* name, const auto& field) { value[name] = value_of(field); });
    return value;
  }
  void assign(Options& options, const Value& value) const override {
    visit_options(static_cast<KindOptions&>(options), [&](const char* name, auto& field) {
      with_context({.key = std::string("option ") + name}, [&] { take(field, value.at(name)); });
    });
  }

 private:
  const char* name_;
};

template <typename Kind, typename KindOptions, typename KindState>
const OptimizerKind* match(const Optimizer& optimizer, const char* name) {
  static const Known<KindOptions, KindState> known(name);
  return dynamic_cast<const Kind*>(&optimizer) == nullptr ? nullptr : &known;
}

}  // namespace

std::vector<std::string> OptimizerSlots::names() const {
  std::vector<std::string> names;
  for (const StateTensor& slot : tensors) names.emplace_back(slot.name);
  return names;
}

const OptimizerKind& kind_of(const Optimizer& optimizer, const ModuleStateOptions& options) {
  if (options.optimizer_kind != nullptr) return *options.optimizer_kind;
  for (const OptimizerKind* known :
       {match<Adam, AdamOptions, AdamParamState>(optimizer, "Adam"),
        match<AdamW, AdamWOptions, AdamWParamState>(optimizer, "AdamW"),
        match<SGD, SGDOptions, SGDParamState>(optimizer, "SGD"),
        match<RMSprop, RMSpropOptions, RMSpropParamState>(optimizer, "RMSprop"),
        match<Adagrad, AdagradOptions, AdagradParamState>(optimizer, "Adagrad")}) {
    if (known != nullptr) return *known;
  }
  throw_error(
      ErrorCode::kUnsupported,
      "the state of an optimizer of type " + quote(c10::demangle(typeid(optimizer).name())) +
          " is not known; expected SGD, Adam, AdamW, RMSprop or Adagrad. Describe it with an "
          "OptimizerKind of your own in ModuleStateOptions::optimizer_kind");
}

void require_same_optimizer(const Optimizer& optimizer, const ModuleStateOptions& options,
                            const Value& state) {
  const Value* const saved = state.find("optimizer");
  const Value* const name = saved == nullptr ? nullptr : saved->find("name");
  const char* const own = kind_of(optimizer, options).name();
  if (name == nullptr || *name == Value(own)) return;
  throw_error(ErrorCode::kMismatch, "the checkpoint is of the optimizer {}, this one is {}",
              quote(name->as_str()), quote(own));
}

}  // namespace dckpt::torch
