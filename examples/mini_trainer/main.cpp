// Trains a small language model with tensor and data parallel ranks and a sharded optimizer. It may
// be killed at any time, and continues from the newest checkpoint under the layout that it is
// started with. Ranks are threads here; in a real job they are processes.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

#include "sharded_adam.h"

namespace {

constexpr char kUsage[] =
    "usage: mini_trainer --text FILE --checkpoints FOLDER --policy FILE [--tp N] [--dp N] "
    "[--iterations N]\n"
    "--tp cuts the hidden layer (192 units), --dp cuts the batch (96 samples): each divides its "
    "number.";
constexpr int kBatch = 96, kSaveEvery = 50, kPrintEvery = 25;

using Options = std::map<std::string, std::string>;

Options parse(int argc, char** argv) {
  Options options = {{"--text", ""}, {"--checkpoints", ""}, {"--policy", ""},
                     {"--tp", "1"},  {"--dp", "1"},         {"--iterations", "400"}};
  for (int i = 1; i < argc; i += 2) {
    const auto option = options.find(argv[i]);
    if (option == options.end() || i + 1 == argc) throw std::invalid_argument(kUsage);
    option->second = argv[i + 1];
  }
  for (const char* name : {"--text", "--checkpoints", "--policy"})
    if (options.at(name).empty()) throw std::invalid_argument(kUsage);
  return options;
}

// Returns a tensor without copying: `elements` must outlive it.
dckpt::Tensor tensor(float* elements, const dckpt::Shape& shape) {
  return dckpt::Tensor::wrap(dckpt::DType::kFloat32, shape, elements);
}

// Describes this rank's state as parts of the whole model, which is all that dckpt knows of the
// layout.
dckpt::StateDict sharded_state(mini::Model& model, mini::ShardedAdam& adam,
                               const dckpt::ParallelRank& rank) {
  dckpt::Value parameters;
  for (const mini::Parameter& p : model.parameters) {
    const dckpt::Tensor weight = tensor(&model.weights[p.first], p.shape);
    const int axis = p.shape[0] == p.global_shape[0] ? 1 : 0;  // the axis that is cut, if any
    parameters[p.key] = p.cut() ? dckpt::tensor_parallel(rank, p.key, weight, axis)
                                : dckpt::replicated(rank, p.key, weight);
  }
  const dckpt::Shape owned{adam.end - adam.begin};  // the range of all parameters, one after the
                                                    // other
  dckpt::StateDict state;
  state["optimizer"] =
      dckpt::distributed_optimizer_state(rank, parameters,
                                         {{"exp_avg", tensor(adam.exp_avg.data(), owned)},
                                          {"exp_avg_sq", tensor(adam.exp_avg_sq.data(), owned)}},
                                         {.owned = {{adam.begin, adam.end}}});
  state["model"] = std::move(parameters);
  return state;
}

void train(dckpt::Communicator& world, int tp, const Options& options, std::string_view text) {
  const dckpt::ParallelRank rank =
      dckpt::parallel_rank({.tp = tp, .dp = 0}, world.rank(), world.size());
  const auto tensor_ranks = world.split(dckpt::parallel_group(rank, "tp").front()),
             data_ranks = world.split(dckpt::parallel_group(rank, "dp").front());
  mini::Model model({*tensor_ranks, *data_ranks});
  mini::ShardedAdam adam(model);

  dckpt::Checkpointer checkpointer(options.at("--checkpoints"),
                                   dckpt::Policy::from_file(options.at("--policy")), world);
  checkpointer.claim();
  dckpt::StateDict state = sharded_state(model, adam, rank);
  std::uint64_t iteration = 0;
  if (checkpointer.latest()) iteration = checkpointer.resume(state).iteration;
  if (world.rank() == 0) std::printf("starts after iteration %d\n", static_cast<int>(iteration));

  const std::uint64_t iterations = std::stoull(options.at("--iterations"));
  while (iteration < iterations) {
    const std::uint64_t part = kBatch / data_ranks->size(), first = part * data_ranks->rank();
    std::vector<std::string_view> samples;  // drawn from the numbers of iteration and sample alone
    for (std::uint64_t i = first; i < first + part; ++i) {
      const std::uint64_t start = (iteration * kBatch + i) * 7919 % (text.size() - model.kContext);
      samples.push_back(text.substr(start, model.kContext + 1));
    }
    mini::Fixed loss = 0;
    model.forward_backward(samples, loss);
    adam.step(++iteration, kBatch);

    loss = data_ranks->all_reduce({&loss, 1}, dckpt::ReduceOp::kSum)[0];
    if (world.rank() == 0 && iteration % kPrintEvery == 0)
      std::printf("%d %.10f\n", static_cast<int>(iteration), mini::to_double(loss) / kBatch);
    if (iteration % kSaveEvery == 0) checkpointer.save(state, iteration);
  }
  checkpointer.wait();  // the last save may still be in progress
}

}  // namespace

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const Options options = parse(argc, argv);
  const int tp = std::stoi(options.at("--tp")), dp = std::stoi(options.at("--dp"));
  if (tp < 1 || dp < 1 || mini::Model::kHidden % tp != 0 || kBatch % dp != 0)
    throw std::invalid_argument(kUsage);
  std::ifstream file(options.at("--text"), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() < 1000) throw std::invalid_argument(options.at("--text") + " is no text");
  dckpt::run_ranks(tp * dp, [&](dckpt::Communicator& world) { train(world, tp, options, text); });
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
