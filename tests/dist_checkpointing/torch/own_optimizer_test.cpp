// Optimizers that are not of libtorch, described by an OptimizerKind: Adafactor, and Muon, which
// leaves parameters with one axis to another rule.

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/torch/module_checkpoint.h"
#include "mapping/torch/optimizer_kind.h"
#include "strategies/comm/threads.h"
#include "tests/dist_checkpointing/torch/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::own_optimizer_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using namespace ::torch::optim;
using dckpt::torch::ModuleStateOptions;
using dckpt::torch::OptimizerKind;
using dckpt::torch::OptimizerSlots;

struct OwnOptions : OptimizerCloneableOptions<OwnOptions> {
  double lr = 0.01;
  double decay = 0.9;
};
struct OwnState : OptimizerCloneableParamState<OwnState> {
  std::int64_t step = 0;
  at::Tensor rows, columns, squares, scale, momentum;
};

/// An optimizer with one rule for each parameter that has a gradient.
class Own : public Optimizer {
 public:
  Own(std::vector<at::Tensor> params, OwnOptions options)
      : Optimizer({OptimizerParamGroup(std::move(params))}, std::make_unique<OwnOptions>(options)) {
  }
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const at::NoGradGuard no_grad;
    for (OptimizerParamGroup& group : param_groups()) {
      for (at::Tensor& param : group.params()) {
        if (!param.grad().defined()) continue;
        auto& entry = state()[param.unsafeGetTensorImpl()];
        if (!entry) entry = std::make_unique<OwnState>();
        update(param, static_cast<OwnState&>(*entry), static_cast<OwnOptions&>(group.options()));
      }
    }
    return {};
  }
  virtual void update(at::Tensor& param, OwnState& state, const OwnOptions& options) = 0;
};

struct Adafactor final : Own {
  using Own::Own;
  void update(at::Tensor& param, OwnState& state, const OwnOptions& options) override {
    const at::Tensor square = param.grad().square() + 1e-12;
    const auto average = [&](at::Tensor& mean, const at::Tensor& next) {
      mean = (mean.defined() ? mean : at::zeros_like(next)) * options.decay +
             next * (1 - options.decay);
    };
    ++state.step;
    state.scale = (state.scale.defined() ? state.scale : at::ones({})) * 0.9;
    at::Tensor second;
    if (param.dim() < 2) {
      average(state.squares, square);
      second = state.squares;
    } else {
      average(state.rows, square.mean(-1));
      average(state.columns, square.mean(-2));
      second = state.rows.unsqueeze(-1) * state.columns.unsqueeze(-2) / state.rows.mean();
    }
    param.sub_(param.grad() / (second.sqrt() + 1e-6) * options.lr * state.scale);
  }
};

struct Muon final : Own {
  using Own::Own;
  void update(at::Tensor& param, OwnState& state, const OwnOptions& options) override {
    ++state.step;
    state.momentum =
        (state.momentum.defined() ? state.momentum : at::zeros_like(param)) * options.decay +
        param.grad();
    if (param.dim() < 2) return void(param.sub_(state.momentum * options.lr));
    at::Tensor update = state.momentum / (state.momentum.norm() + 1e-7);
    for (int round = 0; round < 5; ++round) {  // Newton and Schulz
      const at::Tensor square = update.mm(update.t());
      update = update * 1.5 - square.mm(update) * 0.5;
    }
    param.sub_(update * options.lr);
  }
};

class OwnKind : public OptimizerKind {
 public:
  std::unique_ptr<State> new_state() const override { return std::make_unique<OwnState>(); }
  Value to_value(const Options& options) const override {
    const auto& own = static_cast<const OwnOptions&>(options);
    return Value::dict({{"lr", own.lr}, {"decay", own.decay}});
  }
  void assign(Options& options, const Value& value) const override {
    auto& own = static_cast<OwnOptions&>(options);
    own.lr = value.at("lr").as_float();
    own.decay = value.at("decay").as_float();
  }
};

struct AdafactorKind final : OwnKind {
  const char* name() const override { return "Adafactor"; }
  OptimizerSlots slots(State& any, const Options&, const at::Tensor& param) const override {
    auto& state = static_cast<OwnState&>(any);
    OptimizerSlots slots{.step = &state.step};
    slots.tensors.push_back(
        {"scale", &state.scale, StateCut::kNumber, [](const at::Tensor&) { return at::ones({}); }});
    if (param.dim() < 2) {
      slots.tensors.push_back({"squares", &state.squares});
    } else {
      slots.tensors.push_back({"rows", &state.rows, StateCut::kRow});
      slots.tensors.push_back({"columns", &state.columns, StateCut::kColumn});
    }
    return slots;
  }
};

struct MuonKind final : OwnKind {
  const char* name() const override { return "Muon"; }
  OptimizerSlots slots(State& any, const Options&, const at::Tensor&) const override {
    auto& state = static_cast<OwnState&>(any);
    return {.tensors = {{"momentum", &state.momentum}}, .step = &state.step};
  }
};

const AdafactorKind kAdafactor;
const MuonKind kMuon;

struct OwnOptimizers : ::testing::Test {
  TempDir folder;
  void expect_continues(const MakeOptimizer& make, const OptimizerKind& kind, int before) {
    ModuleStateOptions options;
    options.optimizer_kind = &kind;
    const std::string name = (folder.path() / (kind.name() + std::to_string(before))).string();
    Trainer first(make);
    first.steps(0, before);
    torch::save(first.net, *first.optimizer, name, {}, options);
    const std::vector<double> expected = first.steps(before, 3);
    Trainer second(make);
    second.steps(0, 1);  // other state, which the load replaces
    torch::load(second.net, *second.optimizer, name, {}, options);
    EXPECT_EQ(second.steps(before, 3), expected);
    Trainer third(make);
    torch::load(third.net, *third.optimizer, name, {}, options);
    EXPECT_EQ(third.steps(before, 3), expected);
  }
};

TEST_F(OwnOptimizers, ContinueToTheLastDigitAlsoFromBeforeTheFirstStep) {
  for (const int before : {0, 3}) {
    SCOPED_TRACE(before);
    expect_continues(with<Adafactor>(OwnOptions()), kAdafactor, before);
    expect_continues(with<Muon>(OwnOptions()), kMuon, before);
  }
}

struct Matrix : ::torch::nn::Module {
  explicit Matrix(const at::Tensor& content) { register_parameter("weight", content.clone()); }
};

TEST_F(OwnOptimizers, FactorsOfTensorParallelRanksBecomeThoseOfTheWhole) {
  const at::Tensor whole = at::arange(24, at::kFloat).view({4, 6});
  const at::Tensor rows = at::arange(4, at::kFloat) + 100,
                   columns = at::arange(6, at::kFloat) + 200;
  const std::string name = (folder.path() / "saved").string();
  run_ranks(2, [&](Communicator& comm) {
    Matrix part(whole.narrow(1, 3 * comm.rank(), 3));
    Adafactor optimizer(part.parameters(), {});
    auto state = std::make_unique<OwnState>();
    state->step = 5;
    state->rows = rows;  // of all columns: ranks have summed it up
    state->columns = columns.narrow(0, 3 * comm.rank(), 3);
    state->scale = at::full({}, 0.25);
    optimizer.state()[part.parameters()[0].unsafeGetTensorImpl()] = std::move(state);
    ModuleStateOptions options;
    options.rank = comm.rank();
    options.size = 2;
    options.data_rank = 0;
    options.rng = false;
    options.optimizer_kind = &kAdafactor;
    options.shard = [&](const std::string&, const at::Tensor&) {
      return torch::RankOffsets{.offsets = {{.axis = 1, .rank = comm.rank(), .count = 2}}};
    };
    dckpt::save(torch::sharded_state(part, optimizer, options), name, {}, comm);
  });
  Matrix loaded(at::zeros({4, 6}));
  Adafactor optimizer(loaded.parameters(), {});
  ModuleStateOptions options;
  options.rng = false;
  options.optimizer_kind = &kAdafactor;
  torch::load(loaded, optimizer, name, {}, options);
  EXPECT_TRUE(loaded.parameters()[0].equal(whole));
  const auto& state =
      static_cast<OwnState&>(*optimizer.state().at(loaded.parameters()[0].unsafeGetTensorImpl()));
  EXPECT_TRUE(state.rows.equal(rows));
  EXPECT_TRUE(state.columns.equal(columns));
  EXPECT_EQ(state.scale.item<float>(), 0.25F);
  EXPECT_EQ(state.step, 5);
}

TEST_F(OwnOptimizers, ThatAKindDescribesWronglyAreRefused) {
  struct WrongCut final : OwnKind {
    const char* name() const override { return "Muon"; }
    OptimizerSlots slots(State& any, const Options&, const at::Tensor&) const override {
      auto& state = static_cast<OwnState&>(any);
      return {.tensors = {{"momentum", &state.momentum, cut}}};
    }
    StateCut cut = StateCut::kColumn;
  } wrong;
  ModuleStateOptions options;
  options.optimizer_kind = &wrong;
  Matrix module(at::zeros({4, 6}));
  Muon muon(module.parameters(), {});
  auto state = std::make_unique<OwnState>();
  state->momentum = at::zeros({4});
  muon.state()[module.parameters()[0].unsafeGetTensorImpl()] = std::move(state);
  const auto refusal = [&](const ::torch::nn::Module& of) {
    return std::string(error_of([&] { torch::sharded_state(of, muon, options); }).what());
  };
  EXPECT_THAT(refusal(module), ::testing::AllOf(HasSubstr("(4,)"), HasSubstr("(6,)"),
                                                HasSubstr("optimizer.state.momentum.weight")));
  wrong.cut = StateCut::kRow;
  EXPECT_NO_THROW(torch::sharded_state(module, muon, options));

  Matrix vector(at::zeros({4}));
  Muon of_vector(vector.parameters(), {});
  EXPECT_THAT(error_of([&] { torch::sharded_state(vector, of_vector, options); }).what(),
              HasSubstr("state by row or column needs a parameter with at least two axes"));
}

TEST_F(OwnOptimizers, KeepElementsAloneForPiecesOfADistributedOptimizer) {
  ModuleStateOptions options;
  options.distributed_optimizer = true;
  Matrix module(at::zeros({4, 6}));
  const at::Tensor piece = module.parameters()[0].detach().view(-1).narrow(0, 5, 10);
  Muon muon({piece}, {});
  options.optimizer_kind = &kMuon;
  EXPECT_NO_THROW(torch::sharded_state(module, muon, options));
  Adafactor adafactor({piece}, {});
  options.optimizer_kind = &kAdafactor;
  EXPECT_THAT(error_of([&] { torch::sharded_state(module, adafactor, options); }).what(),
              ::testing::AllOf(HasSubstr("is a piece of the module's memory"),
                               HasSubstr("optimizer.state.scale.weight")));
}

TEST_F(OwnOptimizers, AreNamedWhereTheyDiffer) {
  const std::string name = (folder.path() / "saved").string();
  ModuleStateOptions options;
  options.optimizer_kind = &kMuon;
  Trainer muon(with<Muon>(OwnOptions()));
  torch::save(muon.net, *muon.optimizer, name, {}, options);
  options.optimizer_kind = &kAdafactor;
  Trainer adafactor(with<Adafactor>(OwnOptions()));
  EXPECT_THAT(
      error_of([&] { torch::load(adafactor.net, *adafactor.optimizer, name, {}, options); }).what(),
      HasSubstr("the checkpoint is of the optimizer 'Muon', this one is 'Adafactor'"));
  EXPECT_THAT(error_of([&] { torch::save(muon.net, *muon.optimizer, name); }).what(),
              HasSubstr("is not known; expected SGD, Adam, AdamW, RMSprop or Adagrad. Describe it "
                        "with an OptimizerKind of your own"));
}

}  // namespace
}  // namespace dckpt::own_optimizer_test
