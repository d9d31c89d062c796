// Ranks (threads here, processes in a real job) save a small transformer under one parallel layout
// and load it under another one. Weights are cut by tensor and pipeline parallelism; the
// optimizer's moments are cut further, as a distributed optimizer does: each data-parallel rank
// holds a run of elements of every flattened weight. Nothing in the files depends on either layout,
// and every element is compared.
#include <dckpt/dist_checkpointing.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kLayers = 8, kRows = 48, kColumns = 20;

struct Layout {
  int tensor = 1, pipeline = 1, data = 1;
  int ranks() const { return tensor * pipeline * data; }
};

// A tensor of this rank, and which elements of the whole model it holds.
struct Held {
  dckpt::Tensor tensor;
  std::int64_t first = 0;  // number of its first element, counted over all layers, rows and columns
  float scale = 1;         // distinguishes weights and moments
};

// Returns the shards of rank `rank` of `layout`, described as the library expects; the tensors are
// also listed in `held`.
dckpt::StateDict describe(const Layout& layout, int rank, std::vector<Held>& held) {
  const int tp = rank % layout.tensor, dp = rank / layout.tensor % layout.data,
            pp = rank / layout.tensor / layout.data;
  const std::int64_t rows = kRows / layout.tensor, layers = kLayers / layout.pipeline,
                     elements = rows * kColumns;
  dckpt::StateDict state;
  for (std::int64_t layer = pp * layers; layer < (pp + 1) * layers; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    const std::int64_t first = (layer * kRows + tp * rows) * kColumns;
    const auto place = {dckpt::RankOffset{.axis = 0, .rank = layer, .count = kLayers},
                        dckpt::RankOffset{.axis = 1, .rank = tp, .count = layout.tensor}};

    const auto weight = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {rows, kColumns});
    state["model"][name] = dckpt::ShardedTensor::from_rank_offsets(
        "decoder.layers.weight", weight, place, {.replica_id = {0, 0, dp}, .prepend_axis_num = 1});
    held.push_back({weight, first, 1.0F});

    const std::int64_t begin = elements * dp / layout.data, end = elements * (dp + 1) / layout.data;
    const auto moment = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {end - begin});
    state["optimizer"][name] = dckpt::ShardedTensor::from_rank_offsets_flat(
        "optimizer.state.exp_avg.decoder.layers.weight", moment, {rows, kColumns}, place,
        {begin, end}, {.replica_id = {0, 0, 0}, .prepend_axis_num = 1});
    held.push_back({moment, first + begin, -0.5F});
  }
  return state;
}

// Gives element n of the model the value n, its moment -n/2.
void fill(Held& held) {
  auto* const values = held.tensor.data<float>();
  for (std::int64_t i = 0; i < held.tensor.numel(); ++i)
    values[i] = held.scale * static_cast<float>(held.first + i);
}

std::int64_t wrong_elements(const Held& held) {
  const auto* const values = held.tensor.data<const float>();
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < held.tensor.numel(); ++i)
    wrong += values[i] != held.scale * static_cast<float>(held.first + i);
  return wrong;
}

std::string to_string(const Layout& layout) {
  return std::to_string(layout.ranks()) + " rank" + (layout.ranks() == 1 ? "" : "s") + " (TP" +
         std::to_string(layout.tensor) + " PP" + std::to_string(layout.pipeline) + " DP" +
         std::to_string(layout.data) + ")";
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  const Layout saved{.tensor = 2, .pipeline = 2, .data = 2};
  dckpt::run_ranks(saved.ranks(), [&](dckpt::Communicator& comm) {
    std::vector<Held> held;
    dckpt::StateDict state = describe(saved, comm.rank(), held);
    for (Held& tensor : held) fill(tensor);
    state["iteration"] = 1000;
    dckpt::save(state, directory, {}, comm);
  });
  std::printf("saved by  %s\n", to_string(saved).c_str());

  std::int64_t wrong_anywhere = 0;
  for (const Layout& wanted :
       {Layout{4, 1, 1}, Layout{1, 4, 2}, Layout{3, 2, 3}, Layout{1, 1, 1}}) {
    std::atomic<std::int64_t> elements = 0, wrong = 0;
    dckpt::run_ranks(wanted.ranks(), [&](dckpt::Communicator& comm) {
      std::vector<Held> held;
      dckpt::StateDict state = describe(wanted, comm.rank(), held);
      dckpt::load(state, directory, {}, comm);
      for (const Held& tensor : held) {
        elements += tensor.tensor.numel();
        wrong += wrong_elements(tensor);
      }
      if (state.at("iteration").as_int() != 1000) ++wrong;
    });
    std::printf("loaded by %-22s %lld elements compared, %lld differ\n",
                (to_string(wanted) + ":").c_str(), static_cast<long long>(elements),
                static_cast<long long>(wrong));
    wrong_anywhere += wrong;
  }
  return wrong_anywhere == 0 ? 0 : 1;
} catch (const dckpt::CheckpointError& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
