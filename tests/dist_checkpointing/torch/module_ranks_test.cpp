// Jobs of several ranks describe a module in one call; others continue under another layout.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "dist_checkpointing/torch/module_checkpoint.h"
#include "strategies/comm/threads.h"
#include "tests/dist_checkpointing/torch/trainer.h"
#include "tests/support/temp_dir.h"

namespace dckpt::module_ranks_test {
namespace {

using ::testing::HasSubstr;
using namespace ::torch::optim;
using torch::ModuleStateOptions;
using torch::RankOffsets;
using torch::Replicate;
using torch::Sharding;

const MakeOptimizer kAdam = with<Adam>(AdamOptions(0.01));

struct ModuleRanks : ::testing::Test {
  ModuleRanks() {
    at::set_num_threads(1);
    Trainer alone(kAdam);
    alone.steps(0, 3);
    expected = alone.steps(3, 2);
  }
  TempDir folder;
  std::string checkpoint = (folder / "checkpoint").string();
  std::vector<double> expected;  ///< losses of steps 3 and 4
};

ModuleStateOptions data_parallel(const Communicator& comm) {
  return {.rank = comm.rank(), .size = comm.size()};
}

void save_from(const Trainer& trainer, const std::string& checkpoint, Communicator& comm,
               const ModuleStateOptions& options) {
  save(torch::sharded_state(trainer.net, *trainer.optimizer, options), checkpoint, {}, comm);
}

void load_into(Trainer& trainer, const std::string& checkpoint, Communicator& comm,
               const ModuleStateOptions& options) {
  StateDict state = torch::sharded_state(trainer.net, *trainer.optimizer, options);
  load(state, checkpoint, {}, comm);
  torch::restore(trainer.net, *trainer.optimizer, state, options);
}

TEST_F(ModuleRanks, DataParallelJobsContinueWithAnyNumberOfRanks) {
  run_ranks(2, [&](Communicator& comm) {
    Trainer trainer(kAdam);
    trainer.steps(0, 3);
    save_from(trainer, checkpoint, comm, data_parallel(comm));
  });
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](Communicator& comm) {
      Trainer trainer(kAdam);
      load_into(trainer, checkpoint, comm, data_parallel(comm));
      EXPECT_EQ(trainer.steps(3, 2), expected);
    });
  }
}

/// Parameters stored one after the other in a flat tensor. Each rank's optimizer has an equal range
/// of it, whose ends may be inside parameters.
struct Flat {
  at::Tensor flat;
};

struct ZeroTrainer : Flat, Trainer {
  static constexpr std::int64_t kPadded = 64;
  static MakeOptimizer over_range(at::Tensor& flat, int rank, int size) {
    return [&flat, rank, size](Net& net) {
      flat = at::zeros({kPadded});
      const at::NoGradGuard no_grad;
      std::int64_t first = 0;
      for (at::Tensor& parameter : net.parameters()) {
        const at::Tensor place = flat.narrow(0, first, parameter.numel()).view(parameter.sizes());
        place.copy_(parameter);
        parameter.set_data(place);
        parameter.mutable_grad() = at::zeros_like(place);
        first += parameter.numel();
      }
      const std::int64_t length = kPadded / size;
      std::vector<at::Tensor> range{flat.narrow(0, length * rank, length)};
      return std::make_unique<Adam>(std::move(range), AdamOptions(0.01));
    };
  }
  explicit ZeroTrainer(Communicator& with)
      : Trainer(over_range(flat, with.rank(), with.size())), comm(with) {}

  double step(int iteration) override {
    net.zero_grad();
    const at::Tensor value = loss(iteration);
    value.backward();
    std::vector<at::Tensor> grads;
    for (const at::Tensor& parameter : net.parameters())
      grads.push_back(parameter.grad().flatten());
    const at::Tensor grad = at::constant_pad_nd(at::cat(grads), {0, kPadded - net_size()});
    at::Tensor& range = optimizer->param_groups()[0].params()[0];
    range.mutable_grad() = grad.narrow(0, range.storage_offset(), range.numel()).clone();
    optimizer->step();
    const Bytes mine(reinterpret_cast<const std::byte*>(range.data_ptr()),
                     reinterpret_cast<const std::byte*>(range.data_ptr()) + range.nbytes());
    auto* to = static_cast<std::byte*>(flat.data_ptr());
    for (const Bytes& part : comm.all_gather(mine)) to = std::copy(part.begin(), part.end(), to);
    return value.item<double>();
  }
  std::int64_t net_size() const {
    std::int64_t size = 0;
    for (const at::Tensor& parameter : net.parameters()) size += parameter.numel();
    return size;
  }

  Communicator& comm;
};

TEST_F(ModuleRanks, RangesOfADistributedOptimizerAreCutAnewAndJoined) {
  const auto zero = [](const Communicator& comm) {
    ModuleStateOptions options = data_parallel(comm);
    options.distributed_optimizer = true;
    return options;
  };
  run_ranks(2, [&](Communicator& comm) {
    ZeroTrainer trainer(comm);
    trainer.steps(0, 3);
    save_from(trainer, checkpoint, comm, zero(comm));
  });
  for (const int ranks : {1, 4}) {
    run_ranks(ranks, [&](Communicator& comm) {
      ZeroTrainer trainer(comm);
      load_into(trainer, checkpoint, comm, zero(comm));
      EXPECT_EQ(trainer.steps(3, 2), expected);
      load_into(trainer, checkpoint, comm, zero(comm));  // where there is state
      EXPECT_EQ(trainer.steps(3, 2), expected);
    });
  }
  run_ranks(2, [&](Communicator& comm) {
    Trainer trainer(kAdam);
    load_into(trainer, checkpoint, comm, data_parallel(comm));
    EXPECT_EQ(trainer.steps(3, 2), expected);
  });
}

/// Returns the axis along which a parameter is cut: the rows of `first`, the elements of `norm`,
/// the columns of `second`.
std::optional<std::int64_t> cut_axis(const std::string& name, const at::Tensor& tensor) {
  if (tensor.dim() == 0 || name == "second.bias") return std::nullopt;
  return name == "second.weight" ? 1 : 0;
}

TEST_F(ModuleRanks, PiecesOfTensorParallelRanksBecomeOneModule) {
  run_ranks(2, [&](Communicator& comm) {
    Trainer whole(kAdam);
    whole.steps(0, 3);
    // This rank's piece, with an optimizer of its own.
    const auto cut = [&](const std::string& name, const at::Tensor& tensor) {
      const auto axis = cut_axis(name, tensor);
      return (axis ? tensor.chunk(2, *axis)[static_cast<std::size_t>(comm.rank())] : tensor)
          .detach()
          .clone();
    };
    Trainer piece(kAdam);
    const auto params = whole.net.named_parameters(), buffers = whole.net.named_buffers();
    for (auto& item : piece.net.named_buffers())
      item.value().set_data(cut(item.key(), buffers[item.key()]));
    for (auto& item : piece.net.named_parameters()) {
      const at::Tensor& parameter = params[item.key()];
      item.value().set_data(cut(item.key(), parameter));
      auto state = std::make_unique<AdamParamState>(static_cast<const AdamParamState&>(
          *whole.optimizer->state().at(parameter.unsafeGetTensorImpl())));
      state->exp_avg(cut(item.key(), state->exp_avg()));
      state->exp_avg_sq(cut(item.key(), state->exp_avg_sq()));
      piece.optimizer->state()[item.value().unsafeGetTensorImpl()] = std::move(state);
    }
    const ModuleStateOptions options{
        .rank = comm.rank(),
        .size = 2,
        .data_rank = 0,
        .shard = [&](const std::string& name, const at::Tensor& tensor) -> Sharding {
          const auto axis = cut_axis(name, tensor);
          if (!axis) return Replicate{.copy = comm.rank()};
          return RankOffsets{.offsets = {{.axis = *axis, .rank = comm.rank(), .count = 2}}};
        }};
    save_from(piece, checkpoint, comm, options);
  });
  Trainer trainer(kAdam);
  torch::load(trainer.net, *trainer.optimizer, checkpoint);
  EXPECT_EQ(trainer.steps(3, 2), expected);
}

TEST_F(ModuleRanks, StagesOfAPipelineStackTheirLayers) {
  const auto options = [](int rank, int size) {
    const int layers = 4 / size;
    return ModuleStateOptions{
        .rank = rank,
        .size = size,
        .data_rank = 0,
        .shard = [=](const std::string& name, const at::Tensor&) -> Sharding {
          const std::int64_t layer = rank * layers + (name[0] - '0');
          return RankOffsets{.offsets = {{.axis = 0, .rank = layer, .count = 4}},
                             .prepend_axis_num = 1};
        },
        .whole_name = [](const std::string& name) { return "layers" + name.substr(1); }};
  };
  struct Stage : ::torch::nn::Module {
    explicit Stage(int layers) {
      for (int i = 0; i < layers; ++i)
        register_module(std::to_string(i), ::torch::nn::Linear(2, 2));
    }
  };
  const auto fill = [](Stage& stage, double value) {
    for (const at::Tensor& parameter : stage.parameters()) parameter.detach().fill_(value++);
  };
  run_ranks(2, [&](Communicator& comm) {
    Stage stage(2);
    fill(stage, 4.0 * comm.rank());
    Adam adam(stage.parameters());
    for (const at::Tensor& parameter : stage.parameters())
      parameter.mutable_grad() = parameter.detach().clone();
    for (int i = 0; i <= comm.rank(); ++i) adam.step();
    fill(stage, 4.0 * comm.rank());
    save(torch::sharded_state(stage, adam, options(comm.rank(), 2)), checkpoint, {}, comm);
  });
  Stage whole(4);
  Adam adam(whole.parameters());
  torch::load(whole, adam, checkpoint, {}, options(0, 1));
  double value = 0;
  for (const at::Tensor& parameter : whole.parameters()) {
    EXPECT_TRUE((parameter == value).all().item<bool>());
    const auto& state =
        static_cast<const AdamParamState&>(*adam.state().at(parameter.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), value < 4 ? 1 : 2);
    EXPECT_GT(state.exp_avg().sum().item<double>(), value == 0 ? -1 : 0);
    ++value;
  }
}

}  // namespace
}  // namespace dckpt::module_ranks_test
