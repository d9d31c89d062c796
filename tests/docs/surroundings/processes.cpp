// A process that was started as the only one of its job.
#include <dckpt/dist_checkpointing.h>

#include <stdlib.h>  // setenv
#include <unistd.h>

#include <cstdlib>
#include <string>

void SNIPPET() {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("MASTER_ADDR", "localhost", 1);
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 10000).c_str(), 1);
  const std::string secret = "s";
  const int threads = 3;
  const auto train = [](dckpt::Communicator& comm) {
    if (comm.size() != threads) std::abort();
    comm.barrier();
  };
BLOCK
}
