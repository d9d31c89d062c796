#include "parallel_state.h"

#include <cstdlib>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace gpt {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr)
    throw std::invalid_argument(std::string(name) +
                                " is not set: start the trainer with ./run or torchrun");
  return value;
}

int number(const char* name) {
  return std::stoi(variable(name));
}

/// Returns the store where the processes find each other. torchrun's own process serves it, else
/// rank 0.
c10::intrusive_ptr<c10d::Store> rendezvous(int rank) {
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(number("MASTER_PORT"));
  options.isServer = rank == 0 && (agent == nullptr || std::string(agent) != "True");
  options.waitWorkers = false;
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return c10::make_intrusive<c10d::PrefixStore>(
      std::string("gpt_trainer/") + (restarts == nullptr ? "0" : restarts),
      c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options));
}

}  // namespace

std::string to_string(const Layout& layout) {
  return "TP" + std::to_string(layout.tp) + "·PP" + std::to_string(layout.pp) + "·DP" +
         std::to_string(layout.dp);
}

ParallelState connect(int tp, int pp) {
  const int size = number("WORLD_SIZE");
  if (tp < 1 || pp < 1 || size % (tp * pp) != 0) {
    throw std::invalid_argument(std::to_string(size) + " processes cannot be cut into TP" +
                                std::to_string(tp) + "·PP" + std::to_string(pp));
  }
  ParallelState state;
  state.layout = {tp, pp, size / (tp * pp)};
  state.rank = number("RANK");
  state.tp_rank = state.rank % tp;
  state.dp_rank = state.rank / tp % state.layout.dp;
  state.pp_rank = state.rank / tp / state.layout.dp;
  const auto store = rendezvous(state.rank);
  const std::string stage = "stage" + std::to_string(state.pp_rank);
  state.world = Group(store, "world", state.rank, size);
  state.tensor = Group(store, stage + ".dp" + std::to_string(state.dp_rank), state.tp_rank, tp);
  state.data =
      Group(store, stage + ".tp" + std::to_string(state.tp_rank), state.dp_rank, state.layout.dp);
  return state;
}

}  // namespace gpt
