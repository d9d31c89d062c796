// A module and its optimizer in one call: training continues as if it had not been interrupted.

#include "dist_checkpointing/torch/module_checkpoint.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "strategies/comm/threads.h"
#include "tests/dist_checkpointing/torch/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::module_checkpoint_test {
namespace {

using ::testing::HasSubstr;
using namespace ::torch::optim;

struct ModuleCheckpoint : ::testing::Test {
  TempDir folder;
  std::string checkpoint(const char* name = "checkpoint") {
    return (folder.path() / name).string();
  }
};

template <typename Body>
std::string refusal(Body&& body) {
  return testing::error_of(std::forward<Body>(body)).what();
}

struct Kind {
  const char* name;
  MakeOptimizer make;
};

const Kind kKinds[] = {
    {"sgd", with<SGD>(SGDOptions(0.01))},
    {"sgd_momentum", with<SGD>(SGDOptions(0.01).momentum(0.9).dampening(0.5).weight_decay(0.1))},
    {"adam", with<Adam>(AdamOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1))},
    {"amsgrad", with<Adam>(AdamOptions(0.01).amsgrad(true))},
    {"adamw", with<AdamW>(AdamWOptions(0.01))},
    {"rmsprop", with<RMSprop>(RMSpropOptions(0.01))},
    {"rmsprop_centered", with<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true))},
    {"adagrad", with<Adagrad>(AdagradOptions(0.01).lr_decay(0.1).initial_accumulator_value(0.5))},
};

TEST_F(ModuleCheckpoint, TrainingGoesOnToTheLastDigit) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    at::manual_seed(7);
    Trainer first(kind.make, 0.5);
    first.steps(0, 3);
    torch::save(first.net, *first.optimizer, checkpoint(kind.name));
    const std::vector<double> expected = first.steps(3, 2);

    at::manual_seed(8);
    Trainer second(kind.make, 0.5);
    torch::load(second.net, *second.optimizer, checkpoint(kind.name));
    EXPECT_EQ(second.steps(3, 2), expected);
    torch::load(second.net, *second.optimizer, checkpoint(kind.name));  // and back
    EXPECT_EQ(second.steps(3, 2), expected);
  }
}

TEST_F(ModuleCheckpoint, SavesBeforeTheFirstStepAndOfParametersWithoutGradients) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    for (const int steps : {0, 2}) {
      Trainer first(kind.make), second(kind.make);
      for (Trainer* trainer : {&first, &second}) {
        trainer->net.first->bias.set_requires_grad(false);
        trainer->net.first->weight.detach().mul_(2);
      }
      first.steps(0, steps);
      first.net.first->bias.set_requires_grad(true);  // has no state yet
      second.net.first->bias.set_requires_grad(true);
      const std::string name = checkpoint((kind.name + std::to_string(steps)).c_str());
      torch::save(first.net, *first.optimizer, name);
      const std::vector<double> expected = first.steps(steps, 2);
      second.steps(0, 1);  // already has state for it
      torch::load(second.net, *second.optimizer, name);
      EXPECT_EQ(second.steps(steps, 2), expected);
    }
  }
}

TEST_F(ModuleCheckpoint, GroupsHaveTheirOwnOptionsAndTheSchedulerGoesOn) {
  const MakeOptimizer two_groups = [](Net& net) {
    std::vector<OptimizerParamGroup> groups{net.first->parameters(), net.second->parameters()};
    groups[0].set_options(std::make_unique<SGDOptions>(0.01));
    groups[1].set_options(std::make_unique<SGDOptions>(SGDOptions(0.02).momentum(0.5)));
    return std::make_unique<SGD>(groups, SGDOptions(0.5));
  };
  Trainer first(two_groups), second(two_groups);
  StepLR schedule(*first.optimizer, 2), other(*second.optimizer, 2);
  const auto train = [](Trainer& trainer, StepLR& scheduler, int from, int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) {
      losses.push_back(trainer.step(from + i));
      scheduler.step();
    }
    return losses;
  };
  train(first, schedule, 0, 3);
  torch::save(first.net, *first.optimizer, checkpoint(), {}, {.scheduler = &schedule});
  const std::vector<double> expected = train(first, schedule, 3, 4);
  torch::load(second.net, *second.optimizer, checkpoint(), {}, {.scheduler = &other});
  EXPECT_EQ(second.optimizer->param_groups()[1].options().get_lr(), 0.02 * 0.1);
  EXPECT_EQ(train(second, other, 3, 4), expected);

  struct Constant : LRScheduler {
    using LRScheduler::LRScheduler;
    std::vector<double> get_lrs() override { return get_current_lrs(); }
  } constant(*second.optimizer);
  EXPECT_THAT(refusal([&] {
                torch::load(second.net, *second.optimizer, checkpoint(), {},
                            {.scheduler = &constant});
              }),
              HasSubstr("the checkpoint is of the scheduler 'torch::optim::StepLR', this one is"));
}

TEST_F(ModuleCheckpoint, TiedParametersHaveOneStateAndFrozenOnesNone) {
  struct Tied : ::torch::nn::Module {
    Tied() {
      const at::Tensor weight = register_parameter("weight", at::arange(4, at::kFloat));
      register_parameter("again", weight);
      register_parameter("frozen", at::ones({2}), /*requires_grad=*/false);
    }
  };
  Tied tied;
  Adam adam(std::vector<at::Tensor>{tied.named_parameters()["weight"],
                                    tied.named_parameters()["frozen"]});
  tied.parameters()[0].square().sum().backward();
  adam.step();
  torch::save(tied, adam, checkpoint());
  EXPECT_THAT(load_sharded_metadata(checkpoint()).as_dict(),
              ::testing::SizeIs(7));  // model 3, exp_avg, exp_avg_sq, step, rng_state
  Tied other;
  Adam other_adam(std::vector<at::Tensor>{other.named_parameters()["weight"]});
  EXPECT_THAT(refusal([&] { torch::load(other, other_adam, checkpoint()); }),
              HasSubstr("the group has the parameters"));
}

TEST_F(ModuleCheckpoint, ACheckpointOfAnotherTrainerIsRefused) {
  Trainer adam(with<Adam>(AdamOptions(0.01)));
  adam.steps(0, 1);
  torch::save(adam.net, *adam.optimizer, checkpoint());
  const auto load_with = [&](const MakeOptimizer& make) {
    return refusal([&] {
      Trainer other(make);
      torch::load(other.net, *other.optimizer, checkpoint());
    });
  };
  EXPECT_THAT(load_with(with<AdamW>(AdamWOptions(0.01))),
              HasSubstr("the checkpoint is of the optimizer 'Adam', this one is 'AdamW'"));
  EXPECT_THAT(load_with(with<SGD>(SGDOptions(0.01).momentum(0.9))),
              HasSubstr("the checkpoint is of the optimizer 'Adam', this one is 'SGD'"));
  EXPECT_THAT(load_with(with<Adam>(AdamOptions(0.01).amsgrad(true))), HasSubstr("max_exp_avg_sq"));
  EXPECT_THAT(load_with([](Net& net) {
                return std::make_unique<Adam>(std::vector<OptimizerParamGroup>{
                    net.first->parameters(), net.norm->parameters(), net.second->parameters()});
              }),
              HasSubstr("the checkpoint's optimizer has 1 parameter groups, this one has 3"));
  EXPECT_THAT(load_with([](Net& net) { return std::make_unique<LBFGS>(net.parameters()); }),
              HasSubstr("of type 'torch::optim::LBFGS' is not known"));
  EXPECT_THAT(
      load_with(
          [](Net&) { return std::make_unique<Adam>(std::vector<at::Tensor>{at::ones({3})}); }),
      HasSubstr("parameter 0 of group 0 of the optimizer, float32 (3,), is not a parameter"));
}

TEST_F(ModuleCheckpoint, AnotherModuleIsRefused) {
  Trainer first(with<Adam>(AdamOptions(0.01)));
  torch::save(first.net, *first.optimizer, checkpoint());
  ::torch::nn::Linear wider(4, 6), other(5, 6);
  const auto load_into = [&](const std::string& name, ::torch::nn::Linear& linear) {
    ::torch::nn::Module module;
    module.register_module(name, linear);
    Adam optimizer(module.parameters());
    return refusal([&] { torch::load(module, optimizer, checkpoint()); });
  };
  EXPECT_THAT(load_into("frist", wider), HasSubstr("model.frist.weight"));
  EXPECT_THAT(load_into("first", other), HasSubstr("model.first.weight"));
}

TEST_F(ModuleCheckpoint, AShardingThatDoesNotFitIsRefused) {
  Trainer trainer(with<Adam>(AdamOptions(0.01)));
  for (const RankOffset& offset :
       {RankOffset{.axis = 2, .rank = 0, .count = 2}, RankOffset{.axis = 0, .rank = 2, .count = 2},
        RankOffset{.axis = -1, .rank = 0, .count = 2},
        RankOffset{.axis = 0, .rank = 0, .count = 0}}) {
    EXPECT_THAT(refusal([&] {
                  torch::sharded_state(trainer.net, *trainer.optimizer,
                                       {.shard = [&](const std::string&, const at::Tensor&) {
                                         return torch::RankOffsets{.offsets = {offset}};
                                       }});
                }),
                HasSubstr("first.weight"));
  }
}

TEST_F(ModuleCheckpoint, AStateOfOtherOptionsIsNotRestored) {
  Trainer trainer(with<Adam>(AdamOptions(0.01)));
  const StateDict state = torch::sharded_state(trainer.net, {.rng = false});
  EXPECT_THAT(refusal([&] { torch::restore(trainer.net, *trainer.optimizer, state); }),
              HasSubstr("the state has no 'optimizer'"));
  EXPECT_THAT(refusal([&] { torch::restore(trainer.net, state); }),
              HasSubstr("the state has no 'rng_state'"));
  Trainer other(with<Adam>(AdamOptions(0.01)));
  other.net.first->weight.detach().zero_();
  torch::restore(other.net, state, {.rng = false});  // copies
  EXPECT_TRUE(at::equal(other.net.first->weight, trainer.net.first->weight));
}

}  // namespace
}  // namespace dckpt::module_checkpoint_test
