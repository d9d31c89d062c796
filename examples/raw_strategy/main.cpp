// A program with a custom backend: registers it, reads the policy that names it, checks that it
// conforms, saves and loads.

#include <dckpt/strategy.h>
#include <dckpt/testing.h>

#include <cstdio>

#include "raw_strategy.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: raw_strategy POLICY FOLDER\n"), 2;
  const std::filesystem::path folder = argv[2];
  raw::register_strategy();
  const dckpt::Policy policy = dckpt::Policy::from_file(argv[1]);

  const dckpt::ConformanceReport report =
      dckpt::check_strategy(policy.save, folder / "conformance");
  for (const std::string& problem : report.problems) std::fprintf(stderr, "%s\n", problem.c_str());
  if (!report.problems.empty()) return 1;
  std::printf("strategy %s conforms in %d checks\n", policy.save.strategy.name.c_str(),
              report.checks);

  dckpt::run_ranks(2, [&](dckpt::Communicator& comm) {
    const dckpt::Tensor half = dckpt::Tensor::zeros(dckpt::DType::kBFloat16, {512, 256});
    dckpt::StateDict state;
    state["weight"] = dckpt::ShardedTensor::from_rank_offsets(
        "model.weight", half, {{.axis = 0, .rank = comm.rank(), .count = 2}});
    state["iteration"] = 7;
    dckpt::save(state, folder / "checkpoint", policy.save, comm);
  });
  dckpt::StateDict state;
  state["weight"] = dckpt::ShardedTensor::whole(
      "model.weight", dckpt::Tensor::empty(dckpt::DType::kBFloat16, {1024, 256}));
  dckpt::load(state, folder / "checkpoint", policy.load);
  std::printf("loaded iteration %d: %s\n", static_cast<int>(state.at("iteration").as_int()),
              to_string(state.at("weight").as_tensor()).c_str());
}
