// A trainer whose tensors, modules and optimizer are its own, and what it adds to save and to
// resume under any layout: describe() and the calls of Checkpointer. Ranks are processes if the
// environment says so (torchrun, srun, mpirun), else threads.
#include <dckpt/dist_checkpointing.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>

// ---- The trainer, which knows nothing of dckpt but the ranks that it works with. ----

/// A tensor of the trainer. Tied weights share their storage.
struct Tensor {
  std::vector<std::int64_t> sizes;
  std::shared_ptr<std::vector<float>> storage;
};

enum class Cut { kWhole, kRows, kColumns, kFused };  // how tensor parallel ranks divide a weight

struct Parameter {
  std::string name;
  Tensor tensor;
  Cut cut;
  std::vector<std::int64_t> fused{};  // rows of each matrix in it, on this rank
};

struct Config {
  int layers = 2, hidden = 32, inner = 48, vocabulary = 64;
  double rate = 0.05;
};

struct Module {
  Config config;
  std::vector<Parameter> parameters;  // in the order of the layers

  Module(const Config& with, int tp_rank, int tp) : config(with), rank_(tp_rank), ranks_(tp) {
    const std::int64_t hidden = config.hidden, inner = config.inner;
    add("embed.weight", {config.vocabulary, hidden}, Cut::kRows);
    for (int i = 0; i < config.layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      add(layer + "norm1.weight", {hidden}, Cut::kWhole);
      add(layer + "attention.qkv.weight", {3 * hidden, hidden}, Cut::kFused, 3);
      add(layer + "attention.out.weight", {hidden, hidden}, Cut::kColumns);
      add(layer + "norm2.weight", {hidden}, Cut::kWhole);
      add(layer + "mlp.gate_up.weight", {2 * inner, hidden}, Cut::kFused, 2);
      add(layer + "mlp.down.weight", {hidden, inner}, Cut::kColumns);
    }
    add("norm.weight", {hidden}, Cut::kWhole);
    parameters.push_back(parameters.front());  // tied: the head is the embedding
    parameters.back().name = "head.weight";
  }

 private:
  /// Adds this rank's part of a weight whose elements depend on their places in the whole one.
  void add(const std::string& name, std::vector<std::int64_t> sizes, Cut cut, int matrices = 1) {
    const std::int64_t columns = sizes.back(),
                       own_columns = columns / (cut == Cut::kColumns ? ranks_ : 1);
    const std::int64_t first_column = cut == Cut::kColumns ? rank_ * own_columns : 0;
    const std::int64_t rows = sizes.size() < 2 ? 1 : sizes[0] / matrices;
    const bool by_rows = cut == Cut::kRows || cut == Cut::kFused;
    const std::int64_t own_rows = rows / (by_rows ? ranks_ : 1);
    auto elements = std::make_shared<std::vector<float>>();
    for (int matrix = 0; matrix < matrices; ++matrix) {
      const std::int64_t first = matrix * rows + (by_rows ? rank_ * own_rows : 0);
      for (std::int64_t row = first; row < first + own_rows; ++row)
        for (std::int64_t column = first_column; column < first_column + own_columns; ++column)
          elements->push_back(std::sin(static_cast<float>(row * columns + column + name.size())));
    }
    if (sizes.size() == 2) sizes[0] = matrices * own_rows;
    sizes.back() = own_columns;
    parameters.push_back({name, {std::move(sizes), elements}, cut});
    if (cut == Cut::kFused) parameters.back().fused.assign(matrices, own_rows);
  }
  int rank_, ranks_;
};

/// Adam with ZeRO: of each weight, a data parallel rank has the moments of one range of elements,
/// which it updates and sends to the others. Tied weights are updated once.
struct Adam {
  struct Piece {
    Parameter* parameter;
    std::int64_t begin, end;
    std::shared_ptr<std::vector<float>> mean, square;
  };
  std::int64_t steps = 0;  // the step counter
  std::vector<Piece> pieces;

  Adam(Module& module, int rank, int ranks) {
    std::set<const void*> seen;
    for (Parameter& parameter : module.parameters) {
      if (!seen.insert(parameter.tensor.storage.get()).second) continue;
      const auto all = static_cast<std::int64_t>(parameter.tensor.storage->size());
      const std::int64_t begin = all * rank / ranks, end = all * (rank + 1) / ranks;
      const auto zeros = [&] { return std::make_shared<std::vector<float>>(end - begin); };
      pieces.push_back({&parameter, begin, end, zeros(), zeros()});
    }
  }
  void step(double rate, dckpt::Communicator& data_ranks) {
    ++steps;
    for (Piece& piece : pieces) {
      std::vector<float>& weights = *piece.parameter->tensor.storage;
      for (std::int64_t i = piece.begin; i < piece.end; ++i) {
        // This stands for the model's gradient: any that is the same under all layouts.
        const float gradient = std::cos(weights[i] * 3 + static_cast<float>(steps));
        float &mean = (*piece.mean)[i - piece.begin], &square = (*piece.square)[i - piece.begin];
        mean = 0.9F * mean + 0.1F * gradient;
        square = 0.99F * square + 0.01F * gradient * gradient;
        weights[i] -= static_cast<float>(rate) * mean / (std::sqrt(square) + 1e-8F);
      }
      const auto* own = reinterpret_cast<const std::byte*>(weights.data() + piece.begin);
      auto* to = reinterpret_cast<std::byte*>(weights.data());
      for (const dckpt::Bytes& part :
           data_ranks.all_gather({own, (piece.end - piece.begin) * sizeof(float)}))
        to = std::copy(part.begin(), part.end(), to);
    }
  }
};

// ---- What it adds for dckpt. ----

constexpr auto fields(const Config*) {  // the members of Config in the checkpoint
  using dckpt::Field;
  return std::tuple(Field("layers", &Config::layers), Field("hidden", &Config::hidden),
                    Field("inner", &Config::inner), Field("vocabulary", &Config::vocabulary),
                    Field("rate", &Config::rate));
}

dckpt::Tensor wrap(const std::vector<std::int64_t>& sizes,
                   const std::shared_ptr<std::vector<float>>& elements) {
  return dckpt::Tensor::wrap(dckpt::DType::kFloat32, sizes, elements->data(), elements);
}

dckpt::Value describe(const Parameter& parameter, const dckpt::ParallelRank& rank) {
  const dckpt::Tensor weight = wrap(parameter.tensor.sizes, parameter.tensor.storage);
  const std::string& name = parameter.name;
  if (parameter.cut == Cut::kRows) return dckpt::column_parallel(rank, name, weight);
  if (parameter.cut == Cut::kColumns) return dckpt::row_parallel(rank, name, weight);
  if (parameter.cut == Cut::kWhole) return dckpt::replicated(rank, name, weight);
  return dckpt::fused_column_parallel(rank, name, weight, parameter.fused);
}

dckpt::StateDict describe(const Module& module, const Adam& adam, const dckpt::ParallelRank& rank) {
  dckpt::StateDict state;
  for (const Adam::Piece& piece : adam.pieces) {  // has tied weights once
    const std::string& name = piece.parameter->name;
    state["model"][name] = describe(*piece.parameter, rank);
    // The parameter is a bucket of its own, of which this rank has a range.
    const std::vector<std::int64_t> sizes = {piece.end - piece.begin};
    state["optimizer"][name] = dckpt::distributed_optimizer_state(
        rank, dckpt::Value::dict({{name, state["model"][name]}}),
        {{"exp_avg", wrap(sizes, piece.mean)}, {"exp_avg_sq", wrap(sizes, piece.square)}},
        {.owned = {{piece.begin, piece.end}}});
  }
  state["config"] = dckpt::to_dict(module.config);
  state["steps"] = adam.steps;
  return state;
}

void train(dckpt::Communicator& world, int tp, std::int64_t last, const std::string& folder) {
  const dckpt::ParallelRank rank =
      dckpt::parallel_rank({.tp = tp, .dp = 0}, world.rank(), world.size());
  const auto data_ranks = world.split(dckpt::parallel_group(rank, "dp").front());
  Module module({}, static_cast<int>(rank.tp), tp);
  Adam adam(module, data_ranks->rank(), data_ranks->size());

  dckpt::Checkpointer checkpointer(
      folder, dckpt::Policy::from_text("version: 1\nsave: {async: {enabled: true}}"), world);
  checkpointer.claim();  // ends what a killed job has left
  if (checkpointer.latest()) {
    dckpt::StateDict state = describe(module, adam, rank);
    checkpointer.resume(state);  // fills the trainer's memory
    adam.steps = state.at("steps").as_int();
    module.config = dckpt::from_dict<Config>(state.at("config"));
  }
  while (adam.steps < last) {
    adam.step(module.config.rate, *data_ranks);
    if (adam.steps % 10 == 0)
      checkpointer.save(describe(module, adam, rank), static_cast<std::uint64_t>(adam.steps));
    if (world.rank() == 0) std::printf("step %d\n", static_cast<int>(adam.steps));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    checkpointer.wait_staged();  // the next step may change the tensors
  }
  checkpointer.wait();
}

int main(int argc, char** argv) try {
  if (argc != 5) throw std::invalid_argument("usage: own_trainer FOLDER TP DP STEPS");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const int tp = std::stoi(argv[2]), dp = std::stoi(argv[3]), steps = std::stoi(argv[4]);
  const auto train_on = [&](dckpt::Communicator& world) { train(world, tp, steps, argv[1]); };
  if (std::getenv("WORLD_SIZE") != nullptr) return train_on(*dckpt::sockets_from_environment()), 0;
  dckpt::run_ranks(tp * dp, train_on);
} catch (const std::exception& error) {
  std::fprintf(stderr, "own_trainer: %s\n", error.what());
  return 1;
}
