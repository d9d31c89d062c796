// Trains a small GPT with tensor, pipeline and data parallel processes and a sharded optimizer. It
// may be killed at any time, and continues from the newest checkpoint under the layout that it is
// started with.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <csignal>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>

#include "checkpoint.h"
#include "device.h"
#include "pipeline.h"

namespace {

constexpr char kUsage[] =
    "usage: gpt_trainer --text FILE [--tp N] [--pp N] [--device auto|cpu|cuda] [--iterations N] "
    "[--checkpoints FOLDER [--save-every N] [--policy FILE]] [--kill-at N]\n"
    "Each process of a job runs this, started by torchrun or ./run. What --tp and --pp leave of "
    "the processes is data parallel.\n"
    "--kill-at N: the last process kills itself after iteration N, as a node that dies would.";
constexpr std::int64_t kBatch = 16, kMicroBatch = 4;  // samples

using Options = std::map<std::string, std::string>;

Options parse(int argc, char** argv) {
  Options options = {{"--text", ""},         {"--tp", "1"},         {"--pp", "1"},
                     {"--iterations", "20"}, {"--checkpoints", ""}, {"--save-every", "10"},
                     {"--policy", ""},       {"--kill-at", "-1"},   {"--device", "auto"}};
  for (int i = 1; i < argc; i += 2) {
    const auto option = options.find(argv[i]);
    if (option == options.end() || i + 1 == argc)
      throw std::invalid_argument(std::string(argv[i]) +
                                  ": no such option, or no value after it\n" + kUsage);
    option->second = argv[i + 1];
  }
  if (options.at("--text").empty()) throw std::invalid_argument(kUsage);
  return options;
}

/// Returns the mean over the data parallel ranks of the last stage's loss, on every rank.
double mean_loss(double loss, const gpt::ParallelState& parallel) {
  const at::Tensor sum = at::full({1}, loss, at::kDouble);
  parallel.world.sum(sum);
  return sum.item<double>() / (parallel.layout.tp * parallel.layout.dp);
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const auto number = [&](const char* name) { return std::stoll(options.at(name)); };
  const auto [device, note] = gpt::choose_device(options.at("--device"));
  at::set_num_threads(1);

  const gpt::ParallelState parallel =
      gpt::connect(static_cast<int>(number("--tp")), static_cast<int>(number("--pp")));
  const bool prints = parallel.rank == 0;
  if (prints) std::cout << note << std::endl;
  gpt::Model model({}, parallel, device);
  gpt::ShardedAdam adam(model.parameters(), parallel.data,
                        torch::optim::AdamOptions(1e-3).betas({0.9, 0.95}));
  const gpt::Corpus corpus(options.at("--text"), model.config().sequence);
  const std::int64_t part = kBatch / parallel.layout.dp;
  if (part * parallel.layout.dp != kBatch) {
    throw std::invalid_argument("a batch of " + std::to_string(kBatch) +
                                " samples cannot be cut into equal parts for " +
                                to_string(parallel.layout));
  }

  const auto communicator = parallel.world.communicator();
  std::optional<dckpt::Checkpointer> checkpointer;
  std::int64_t iteration = 0;
  if (!options.at("--checkpoints").empty()) {
    const dckpt::Policy policy = options.at("--policy").empty()
                                     ? dckpt::Policy()
                                     : dckpt::Policy::from_file(options.at("--policy"));
    checkpointer.emplace(options.at("--checkpoints"), policy, *communicator);
    checkpointer->claim();
    dckpt::StateDict state = gpt::sharded_state(model, adam, parallel, 0);
    if (checkpointer->load_latest(state)) iteration = gpt::resume(state, model, adam, parallel);
  }
  if (prints)
    std::cout << to_string(parallel.layout)
              << (iteration == 0 ? " starts"
                                 : " goes on after iteration " + std::to_string(iteration))
              << std::endl;

  while (iteration < number("--iterations")) {
    adam.zero_grad();
    const double loss = gpt::forward_backward(
        model, parallel, corpus.batch(iteration * kBatch + parallel.dp_rank * part, part),
        kMicroBatch);
    if (checkpointer) checkpointer->wait_staged();  // a save may still read what a step changes
    adam.step();
    ++iteration;
    const double mean = mean_loss(loss, parallel);
    if (prints)
      std::cout << "iteration " << iteration << " loss " << std::fixed << std::setprecision(7)
                << mean << std::endl;
    if (checkpointer && iteration % number("--save-every") == 0) {
      checkpointer->save(gpt::sharded_state(model, adam, parallel, iteration),
                         static_cast<std::uint64_t>(iteration));
    }
    if (iteration == number("--kill-at")) {
      communicator->barrier();  // all ranks are done, and rank 0 has printed
      if (parallel.rank == parallel.world.size() - 1) std::raise(SIGKILL);
    }
  }
  if (checkpointer) checkpointer->wait();  // the last save may still be in progress
  communicator->barrier();                 // rank 0 may serve the others' rendezvous
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
