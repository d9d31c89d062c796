#include "load_planners.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace example {
namespace {

struct LoadWithoutOptions {
  std::vector<std::string> keys{};
};

/// Leaves tensors unchanged whose keys begin with one of the given prefixes: a checkpoint that
/// lacks frozen parameters is loaded after the base model's.
class LoadWithoutKeys final : public dckpt::MCoreLoadPlanner {
 public:
  explicit LoadWithoutKeys(LoadWithoutOptions options) : options_(std::move(options)) {}
  dckpt::LoadPlan create_local_plan() override {
    dckpt::LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    std::erase_if(plan, [&](const dckpt::LoadItem& item) {
      return std::ranges::any_of(options_.keys, [&](const std::string& prefix) {
        return item.tensor.key.starts_with(prefix);
      });
    });
    return plan;
  }

 private:
  LoadWithoutOptions options_;
};

/// Loads `q.weight`, `k.weight` and `v.weight` from a checkpoint that has them as consecutive rows
/// of `qkv.weight`, in any sharding of both.
class SplitQkv final : public dckpt::MCoreLoadPlanner {
 public:
  dckpt::LoadPlan create_local_plan() override {
    dckpt::LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    for (dckpt::LoadItem& item : plan) {
      dckpt::ShardedTensor& tensor = item.tensor;
      for (const int part : {0, 1, 2}) {
        const std::string name = std::string(".") + "qkv"[part] + ".weight";
        if (!tensor.key.ends_with(name)) continue;
        tensor.key.replace(tensor.key.size() - name.size(), name.size(), ".qkv.weight");
        tensor.global_offset[0] += part * tensor.global_shape[0];
        tensor.global_shape[0] *= 3;
        tensor.axis_fragmentations.reset();
        break;
      }
    }
    return plan;
  }
};

struct Int8Options {
  int steps = 64;  ///< steps per 1.0
};

/// Stores weights of float32 as whole numbers of steps from -127 to 127.
class SaveInt8 final : public dckpt::MCoreSavePlanner {
 public:
  explicit SaveInt8(const Int8Options& options) : options_(options) {}
  dckpt::SavePlan create_local_plan() override {
    dckpt::SavePlan plan = MCoreSavePlanner::create_local_plan();
    for (dckpt::WriteItem& item : plan) {
      if (item.kind != dckpt::WriteItem::Kind::kTensor || item.key.starts_with("optimizer.") ||
          item.properties.dtype != dckpt::DType::kFloat32)
        continue;
      item.properties.dtype = dckpt::DType::kInt8;
      item.nbytes /= sizeof(float);
    }
    return plan;
  }
  bool resolves(const dckpt::WriteItem& item) const override {
    return item.kind == dckpt::WriteItem::Kind::kTensor &&
           item.properties.dtype == dckpt::DType::kInt8;
  }
  dckpt::Tensor resolve_tensor(const dckpt::WriteItem&, dckpt::Tensor data) const override {
    if (data.dtype() == dckpt::DType::kInt8) return data;
    dckpt::Tensor steps = dckpt::Tensor::empty(dckpt::DType::kInt8, data.shape());
    const auto in_steps = [&](float x) {
      return static_cast<std::int8_t>(
          std::clamp(std::round(x * static_cast<float>(options_.steps)), -127.F, 127.F));
    };
    std::transform(data.data<float>(), data.data<float>() + data.numel(), steps.data<std::int8_t>(),
                   in_steps);
    return steps;
  }

 private:
  Int8Options options_;
};

/// Loads int8 weights into tensors of float32.
class LoadInt8 final : public dckpt::MCoreLoadPlanner {
 public:
  explicit LoadInt8(const Int8Options& options) : options_(options) {}
  dckpt::LoadPlan create_local_plan() override {
    std::unordered_map<std::string_view, dckpt::DType> stored;
    for (const dckpt::TensorStorageMetadata& tensor : setup().metadata.tensors)
      stored.emplace(tensor.key, tensor.properties.dtype);
    dckpt::LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    for (dckpt::LoadItem& item : plan) {
      const auto found = stored.find(item.tensor.key);
      if (found != stored.end() && found->second == dckpt::DType::kInt8 &&
          item.wanted == dckpt::DType::kFloat32)
        item.tensor.dtype = dckpt::DType::kInt8;
    }
    return plan;
  }
  bool resolves(const dckpt::LoadItem& item) const override {
    return item.tensor.dtype != item.wanted;
  }
  dckpt::Tensor commit_tensor(const dckpt::LoadItem&, dckpt::Tensor read) const override {
    dckpt::Tensor weights = dckpt::Tensor::empty(dckpt::DType::kFloat32, read.shape());
    std::transform(read.data<std::int8_t>(), read.data<std::int8_t>() + read.numel(),
                   weights.data<float>(), [&](std::int8_t steps) {
                     return static_cast<float>(steps) / static_cast<float>(options_.steps);
                   });
    return weights;
  }

 private:
  Int8Options options_;
};

}  // namespace

void register_load_planners() {
  using dckpt::config::field;
  const dckpt::config::Schema<LoadWithoutOptions> without{{field(
      "keys", &LoadWithoutOptions::keys,
      dckpt::config::list_of(dckpt::config::text("a prefix of keys"), "a list of prefixes"))}};
  const dckpt::config::Schema<Int8Options> int8{
      {field("steps", &Int8Options::steps, dckpt::config::integer(1, 1 << 20))}};

  dckpt::register_planner(
      dckpt::LoadPlannerEntry{.name = "without",
                              .about = "leaves keys as they are",
                              .make = [without](const dckpt::StrategySpec& planner) {
                                return std::make_unique<LoadWithoutKeys>(dckpt::read_options(
                                    without, planner, dckpt::kLoadPlannerOptions));
                              }});
  dckpt::register_planner(dckpt::LoadPlannerEntry{
      .name = "split_qkv",
      .about = "q, k and v from a joined tensor",
      .make = [](const dckpt::StrategySpec&) { return std::make_unique<SplitQkv>(); }});
  dckpt::register_planner(
      dckpt::SavePlannerEntry{.name = "int8_weights",
                              .about = "float32 weights as int8",
                              .make = [int8](const dckpt::StrategySpec& planner) {
                                return std::make_unique<SaveInt8>(
                                    dckpt::read_options(int8, planner, dckpt::kSavePlannerOptions));
                              }});
  dckpt::register_planner(
      dckpt::LoadPlannerEntry{.name = "int8_weights",
                              .about = "float32 weights from int8",
                              .make = [int8](const dckpt::StrategySpec& planner) {
                                return std::make_unique<LoadInt8>(
                                    dckpt::read_options(int8, planner, dckpt::kLoadPlannerOptions));
                              }});
}

}  // namespace example
