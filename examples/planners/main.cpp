// A program with custom planners, chosen by a policy: four ranks save in the background, and
// another job loads what the planner has stored.

#include <dckpt/testing.h>

#include <cstdio>

#include "encryption.h"
#include "load_planners.h"
#include "planners.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: planners POLICY FOLDER\n"), 2;
  const std::filesystem::path folder = argv[2];
  example::register_planners();
  example::register_load_planners();
  example::register_encryption();
  const dckpt::Policy policy = dckpt::Policy::from_file(argv[1]);

  const auto conforms = [](const char* what, const dckpt::ConformanceReport& report) {
    for (const std::string& problem : report.problems)
      std::fprintf(stderr, "%s\n", problem.c_str());
    if (report.problems.empty()) std::printf("%s conforms in %d checks\n", what, report.checks);
    return report.problems.empty();
  };
  const bool has_load_planner = !policy.load.registered_planner.name.empty();
  // Two encrypted saves are never the same.
  const bool repeats = policy.save.registered_planner.name != "encrypted";
  if (repeats && !conforms("save.planner", dckpt::check_planner(policy.save, folder / "saves")))
    return 1;
  if (has_load_planner &&
      !conforms("load.planner", dckpt::check_load_planner(policy, folder / "loads")))
    return 1;

  const auto state_of = [](int rank, dckpt::DType weights) {
    dckpt::StateDict state;
    state["weight"] = dckpt::ShardedTensor::from_rank_offsets(
        "weight", dckpt::Tensor::zeros(weights, {16, 8}), {{.axis = 0, .rank = rank, .count = 4}});
    state["moment"] = dckpt::ShardedTensor::from_rank_offsets(
        "optimizer.state.exp_avg.weight", dckpt::Tensor::zeros(dckpt::DType::kFloat32, {16, 8}),
        {{.axis = 0, .rank = rank, .count = 4}});
    return state;
  };
  dckpt::run_ranks(4, [&](dckpt::Communicator& comm) {
    dckpt::Checkpointer run(folder / "run", policy, comm);
    for (const std::uint64_t iteration : {100, 200}) {
      run.save_async(state_of(comm.rank(), dckpt::DType::kFloat32), iteration);
    }
    run.wait();
  });
  dckpt::run_ranks(4, [&](dckpt::Communicator& comm) {
    const dckpt::DType weights =
        has_load_planner ? dckpt::DType::kFloat32 : dckpt::DType::kBFloat16;
    dckpt::StateDict state = state_of(comm.rank(), weights);
    dckpt::Checkpointer run(folder / "run", policy, comm);
    const auto resumed = run.load_latest(state);
    if (comm.rank() == 0)
      std::printf("iteration %d: weight %s, moment %s\n", static_cast<int>(resumed->iteration),
                  to_string(state.at("weight").as_sharded_tensor().dtype).data(),
                  to_string(state.at("moment").as_sharded_tensor().dtype).data());
  });
}
