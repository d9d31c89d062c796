// A trainer of eight ranks; `zeros` stands for its tensors.
#include <dckpt/dist_checkpointing.h>

void SNIPPET() {
  dckpt::run_ranks(8, [](dckpt::Communicator& comm) {
    const auto zeros = [](const dckpt::Shape& shape) { return dckpt::Tensor::zeros(dckpt::DType::kFloat32, shape); };
    const dckpt::ParallelRank rank = dckpt::parallel_rank({.tp = 2, .pp = 2, .ep = 2, .dp = 0}, comm.rank(), comm.size());
    const std::int64_t layers = 4, hidden = 8, ffn = 16;
    dckpt::StateDict state;
    {
BLOCK
    }
    if (!state.is_none()) {
      dckpt::save(state, "SNIPPET", {}, comm);
      dckpt::load(state, "SNIPPET", {.validate_access_integrity = true}, comm);
    }
  });
}
