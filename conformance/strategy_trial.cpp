#include "conformance/strategy_trial.h"

#include <exception>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "strategies/registry/registry.h"

namespace dckpt::conformance {
namespace {

constexpr std::size_t kShownPerCheck = 10;

/// Leaves out element types that the strategy refuses. Formats need not have every type, but must
/// say so.
void leave_out_foreign_types(TriedStrategy& tried) {
  const Tensors all = tried.tensors;
  for (const auto& [key, tensor] : all) {
    if (!key.starts_with("dtype.") || tensor.dtype() == DType::kFloat32) continue;
    try {
      save(shares_of({{key, tensor}}, 0, 1), tried.scratch / "type", tried.options);
    } catch (const CheckpointError& error) {
      if (error.code() == ErrorCode::kUnsupported && error.context().key == key)
        tried.tensors.erase(key);
    }
  }
}

}  // namespace

TriedStrategy::TriedStrategy(const SaveOptions& tried, const Location& in)
    : options(tried),
      can(find_save_strategy(options.strategy.name, options.strategy.version).capabilities),
      scratch(in),
      tensors(sample_tensors()) {
  options.overwrite = true;
  scratch.directory()->make_directory("");
  leave_out_foreign_types(*this);
}

void StrategyTrial::check(const std::string& what, const std::function<void()>& body) {
  ++report_.checks;
  what_ = what;
  found_ = 0;
  try {
    body();
  } catch (const std::exception& error) {
    problem(error.what());
  }
  if (found_ > kShownPerCheck)
    report_.problems.push_back(
        str_format("{}: … and {} more", what_, grouped(found_ - kShownPerCheck)));
}

void StrategyTrial::problem(const std::string& message) {
  if (++found_ <= kShownPerCheck) report_.problems.push_back(str_format("{}: {}", what_, message));
}

void StrategyTrial::expect_equal(const std::string& key, const Tensor& loaded,
                                 const Tensor& saved) {
  expect(loaded.dtype() == saved.dtype() && equal(loaded.shape(), saved.shape()) &&
             dckpt::equal(loaded, saved),
         str_format("tensor {} differs from what was saved", quote(key)));
}

void StrategyTrial::expect_all(const Location& checkpoint) {
  StateDict state = shards_of(tensors_, 0, 1, false);
  load(state, checkpoint);
  for (const auto& [key, tensor] : tensors_) expect_equal(key, state.at(key).as_tensor(), tensor);
}

StateDict StrategyTrial::saved_by(int rank, int ranks) const {
  return can_.cut_tensors ? shards_of(tensors_, rank, ranks, true)
                          : shares_of(tensors_, rank, ranks);
}

}  // namespace dckpt::conformance
