// State of optimizers that no library knows, saved under one parallel layout and loaded under
// another. What each rank must have is computed from the place of each element alone.

#include <gmock/gmock.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/state/fused_shards.h"
#include "mapping/state/optimizer_slots.h"
#include "mapping/state/parallel_shards.h"
#include "strategies/comm/threads.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::own_optimizers_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 8, kColumns = 12, kHistory = 3;

/// The tensors that an optimizer keeps, by slot and parameter.
using Kept = std::map<std::string, Tensor>;

struct Optimizer {
  const char* name;
  std::function<std::vector<std::pair<OptimizerSlot, bool>>(const Tensor& param)> slots;
};

/// Slots of a parameter; those of matrices are not kept for vectors.
const Optimizer kOptimizers[] = {
    {"LBFGS",
     [](const Tensor&) -> std::vector<std::pair<OptimizerSlot, bool>> {
       return {{{.name = "old_dirs", .stacked = {kHistory}}, true},
               {{.name = "old_stps", .stacked = {kHistory}}, true},
               {{.name = "ro", .cut = StateCut::kNumber, .stacked = {kHistory}}, true},
               {{.name = "n_iter", .cut = StateCut::kNumber}, true}};
     }},
    {"Muon",
     [](const Tensor& param) -> std::vector<std::pair<OptimizerSlot, bool>> {
       return {{{.name = "momentum"}, true},
               {{.name = "exp_avg_sq"}, param.dim() < 2}};  // vectors are left to Adam
     }},
    {"Adafactor",
     [](const Tensor& param) -> std::vector<std::pair<OptimizerSlot, bool>> {
       return {{{.name = "row", .cut = StateCut::kRow}, param.dim() > 1},
               {{.name = "column", .cut = StateCut::kColumn}, param.dim() > 1},
               {{.name = "exp_avg_sq"}, param.dim() < 2},
               {{.name = "rms", .cut = StateCut::kNumber}, true}};
     }},
    {"with a scale of each row beside a moment of 8 bits",
     [](const Tensor& param) -> std::vector<std::pair<OptimizerSlot, bool>> {
       return {{{.name = "moment"}, true},
               {{.name = "scale", .cut = StateCut::kRow}, param.dim() > 1}};
     }},
};

OptimizerHook hook_of(const Optimizer& optimizer, Kept& kept) {
  return [&](const std::string& key, const Tensor& param) {
    std::vector<OptimizerSlot> slots;
    for (auto& [slot, has] : optimizer.slots(param)) {
      if (!has) continue;
      slot.tensor = [&kept, name = slot.name + " of " + key](const Shape& shape) {
        return kept.try_emplace(name, Tensor::zeros(DType::kFloat32, shape)).first->second;
      };
      slots.push_back(slot);
    }
    return slots;
  };
}

Value params_of(const ParallelRank& rank) {
  const std::int64_t tp = rank.layout.tp;
  const auto zeros = [](Shape shape) { return Tensor::zeros(DType::kBFloat16, std::move(shape)); };
  return Value::dict({{"up", column_parallel(rank, "up", zeros({kRows / tp, kColumns}))},
                      {"down", row_parallel(rank, "down", zeros({kRows, kColumns / tp}))},
                      {"norm", replicated(rank, "norm", zeros({kColumns}))}});
}

/// Calls visit(element, place) for all elements of the state, with the place in the whole model.
void for_each_element(Kept& kept, const ParallelRank& rank,
                      const std::function<void(float&, float)>& visit) {
  for (auto& [name, tensor] : kept) {
    const bool up = name.ends_with(" of up"), down = name.ends_with(" of down");
    const bool by_row = name.starts_with("row") || name.starts_with("scale");
    const bool by_column = name.starts_with("column");
    const bool number =
        name.starts_with("n_iter") || name.starts_with("rms") || name.starts_with("ro of");
    const bool history = name.starts_with("old_") || name.starts_with("ro of");
    const std::int64_t rows = number || by_column || !(up || down) ? 1
                              : up                                 ? kRows / rank.layout.tp
                                                                   : kRows;
    const std::int64_t columns = number || by_row ? 1 : down ? kColumns / rank.layout.tp : kColumns;
    const std::int64_t first_row = up && rows > 1 ? rank.tp * rows : 0;
    const std::int64_t first_column = down && columns > 1 ? rank.tp * columns : 0;
    const std::int64_t times = history ? kHistory : 1;
    ASSERT_EQ(tensor.numel(), times * rows * columns) << name;
    float* at = tensor.data<float>();
    for (std::int64_t time = 0; time < times; ++time)
      for (std::int64_t row = first_row; row < first_row + rows; ++row)
        for (std::int64_t column = first_column; column < first_column + columns; ++column)
          visit(*at++, static_cast<float>(10'000 * time + 100 * row + column) +
                           static_cast<float>(name.size()) / 64);
  }
}

TEST(OwnOptimizers, StateIsResharded) {
  const TempDir dir;
  for (const Optimizer& optimizer : kOptimizers) {
    SCOPED_TRACE(optimizer.name);
    const auto folder = dir.path() / optimizer.name;
    run_ranks(8, [&](Communicator& comm) {
      const ParallelRank rank = parallel_rank({.tp = 4, .dp = 0}, comm.rank(), comm.size());
      Kept kept;
      const Value state = optimizer_state(params_of(rank), hook_of(optimizer, kept));
      for_each_element(kept, rank, [](float& element, float place) { element = place; });
      save(state, folder, {}, comm);
    });
    for (const int tp : {1, 2, 4}) {
      run_ranks(4, [&](Communicator& comm) {
        const ParallelRank rank = parallel_rank({.tp = tp, .dp = 0}, comm.rank(), comm.size());
        Kept kept;  // before the first step
        StateDict state = optimizer_state(params_of(rank), hook_of(optimizer, kept));
        LoadOptions options;
        options.validate_access_integrity = true;
        load(state, folder, options, comm);
        for_each_element(kept, rank,
                         [](float& element, float place) { EXPECT_EQ(element, place); });
      });
    }
  }
}

TEST(OwnOptimizers, AHookWhoseShapesDoNotFitIsAnErrorBeforeAnythingIsSaved) {
  const TempDir dir;
  run_ranks(2, [&](Communicator& comm) {
    const ParallelRank rank = parallel_rank({.tp = 2}, comm.rank(), comm.size());
    const auto error = error_of([&] {
      save(optimizer_state(params_of(rank),
                           [](const std::string&, const Tensor&) -> std::vector<OptimizerSlot> {
                             return {{.name = "momentum", .tensor = [](const Shape&) {
                                        return Tensor::zeros(DType::kFloat32, {kRows, kColumns});
                                      }}};
                           }),
           dir / "saved", {}, comm);
    });
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("optimizer.state.momentum.up"),
                                               HasSubstr("float32 (8, 12)"), HasSubstr("(4, 12)")));
  });
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace dckpt::own_optimizers_test
