// A process with four devices, which holds a quarter of the rows on each.
#include <dckpt/dist_checkpointing.h>

#include <cstdlib>

void SNIPPET() {
  const auto comm = dckpt::single_rank();
  const int devices = 4;
  const auto rows_on = [](int device) {
    dckpt::Tensor rows = dckpt::Tensor::zeros(dckpt::DType::kInt32, {2, 3});
    reinterpret_cast<std::int32_t*>(rows.data())[0] = device + 1;
    return rows;
  };
  dckpt::StateDict state;
  {
BLOCK
  }
  dckpt::save(state, "SNIPPET", {}, *comm);
  dckpt::StateDict whole;
  whole["weight"] = dckpt::ShardedTensor::whole("weight", dckpt::Tensor::zeros(dckpt::DType::kInt32, {8, 3}));
  dckpt::load(whole, "SNIPPET", {}, *comm);
  const auto* const values = reinterpret_cast<const std::int32_t*>(whole["weight"].as_sharded_tensor().data->data());
  for (int device = 0; device < devices; ++device)
    if (values[6 * device] != device + 1) std::abort();
}
