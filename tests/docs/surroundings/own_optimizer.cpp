// A trainer of two tensor parallel ranks with an optimizer of its own.
#include <dckpt/dist_checkpointing.h>

#include <cstdlib>
#include <map>
#include <string>

void SNIPPET() {
  dckpt::run_ranks(2, [](dckpt::Communicator& comm) {
    const auto zeros = [](const dckpt::Shape& shape) { return dckpt::Tensor::zeros(dckpt::DType::kFloat32, shape); };
    const dckpt::ParallelRank rank = dckpt::parallel_rank({.tp = 2}, comm.rank(), comm.size());
    std::map<std::string, dckpt::Tensor> adafactor;
    dckpt::StateDict state;
    state["model"]["norm"] = dckpt::replicated(rank, "norm", zeros({6}));
    state["model"]["down"] = dckpt::row_parallel(rank, "down", zeros({6, 4}));
    {
BLOCK
    }
    adafactor.at("downcolumn").data<float>()[0] = 1 + static_cast<float>(comm.rank());
    dckpt::save(state, "SNIPPET", {}, comm);
    const auto columns = dckpt::load_plain_tensors("SNIPPET").at("optimizer.state.column.down").as_tensor();
    if (columns.data<float>()[0] != 1 || columns.data<float>()[4] != 2) std::abort();
  });
}
