#include "load_planners.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

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
/// of `qkv.weight`, and the other way round, in any sharding of both.
class Qkv final : public dckpt::MCoreLoadPlanner {
 public:
  dckpt::LoadPlan create_local_plan() override {
    std::unordered_set<std::string_view> stored;
    for (const dckpt::TensorStorageMetadata& tensor : setup().metadata.tensors)
      stored.insert(tensor.key);
    dckpt::LoadPlan plan;
    for (dckpt::LoadItem& item : MCoreLoadPlanner::create_local_plan()) {
      split(item, stored);
      if (stored.contains(item.tensor.key) || item.tensor.flattened_range || !fuse(item, plan))
        plan.push_back(std::move(item));
    }
    return plan;
  }

 private:
  /// Reads one of the three from its rows of the joined tensor, if that is stored.
  static void split(dckpt::LoadItem& item, const std::unordered_set<std::string_view>& stored) {
    dckpt::ShardedTensor& tensor = item.tensor;
    for (const int part : {0, 1, 2}) {
      const std::string name = std::string(".") + "qkv"[part] + ".weight";
      if (!tensor.key.ends_with(name)) continue;
      const std::string joined =
          tensor.key.substr(0, tensor.key.size() - name.size()) + ".qkv.weight";
      if (!stored.contains(joined)) continue;
      tensor.key = joined;
      tensor.global_offset[0] += part * tensor.global_shape[0];
      tensor.global_shape[0] *= 3;
      tensor.axis_fragmentations.reset();
      return;
    }
  }

  /// Fills the rows of a joined tensor from those of the three that they are made of.
  static bool fuse(const dckpt::LoadItem& item, dckpt::LoadPlan& plan) {
    const std::string_view name = ".qkv.weight";
    const dckpt::ShardedTensor& joined = item.tensor;
    if (!joined.key.ends_with(name) || joined.global_shape[0] % 3 != 0) return false;
    const std::int64_t each = joined.global_shape[0] / 3;
    const std::int64_t first = joined.global_offset[0];
    const std::int64_t end = first + joined.local_shape[0];
    for (const int part : {0, 1, 2}) {
      const std::int64_t from = std::max(first, part * each);
      const std::int64_t to = std::min(end, (part + 1) * each);
      if (from >= to) continue;
      dckpt::LoadItem rows = item;
      dckpt::ShardedTensor& tensor = rows.tensor;
      tensor.key.replace(tensor.key.size() - name.size(), name.size(),
                         std::string(".") + "qkv"[part] + ".weight");
      tensor.axis_fragmentations.reset();
      tensor.global_shape[0] = each;
      tensor.global_offset[0] = from - part * each;
      tensor.local_shape[0] = to - from;
      rows.part = dckpt::Box{dckpt::Shape(tensor.local_shape.size(), 0), tensor.local_shape};
      rows.part->offsets[0] = from - first;
      plan.push_back(std::move(rows));
    }
    return first < end;
  }
};

struct BaseOptions {
  std::string from{};
  std::vector<std::string> keys{};
};

/// Loads frozen parameters from the checkpoint of the base model, and everything else from that of
/// the run, which has been saved without them.
class LoadWithBase final : public dckpt::MCoreLoadPlanner {
 public:
  explicit LoadWithBase(BaseOptions options) : options_(std::move(options)) {}

  dckpt::StateDict prepare_state(dckpt::StateDict state, const dckpt::LoadSetup&) override {
    dckpt::StateDict frozen = dckpt::Value::dict();
    state = dckpt::map_leaves(std::move(state), [&](dckpt::Value leaf) {
      if (leaf.is(dckpt::Value::Kind::kShardedTensor) && is_frozen(leaf.as_sharded_tensor().key)) {
        dckpt::ShardedTensor& tensor = leaf.mutable_sharded_tensor();
        if (!tensor.data) tensor.data = dckpt::Tensor::empty(tensor.dtype, tensor.data_shape());
        frozen[std::to_string(frozen.size())] = tensor;  // shares the memory that is filled
      }
      return leaf;
    });
    // Each rank loads its own shards; whether they cover the whole is the base model's affair.
    dckpt::load(frozen, options_.from, {.validate_access_integrity = false});
    return state;
  }
  dckpt::LoadPlan create_local_plan() override {
    dckpt::LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    std::erase_if(plan, [&](const dckpt::LoadItem& item) { return is_frozen(item.tensor.key); });
    return plan;
  }

 private:
  bool is_frozen(const std::string& key) const {
    return std::ranges::any_of(options_.keys,
                               [&](const std::string& prefix) { return key.starts_with(prefix); });
  }

  BaseOptions options_;
};

}  // namespace

void register_load_planners() {
  using dckpt::config::field;
  const auto keys =
      dckpt::config::list_of(dckpt::config::text("a prefix of keys"), "a list of prefixes");
  const dckpt::config::Schema<LoadWithoutOptions> without{
      {field("keys", &LoadWithoutOptions::keys, keys)}};
  const dckpt::config::Schema<BaseOptions> base{
      {field("from", &BaseOptions::from, dckpt::config::text("the base model's checkpoint")),
       field("keys", &BaseOptions::keys, keys)}};

  dckpt::register_planner(
      dckpt::LoadPlannerEntry{.name = "without",
                              .about = "leaves keys as they are",
                              .make = [without](const dckpt::StrategySpec& planner) {
                                return std::make_unique<LoadWithoutKeys>(dckpt::read_options(
                                    without, planner, dckpt::kLoadPlannerOptions));
                              }});
  dckpt::register_planner(
      dckpt::load_planner_entry<Qkv>("qkv", "q, k and v from a joined tensor, and back"));
  dckpt::register_planner(dckpt::load_planner_entry<LoadWithBase>(
      "with_base", "frozen parameters from a base model's checkpoint",
      [base](const dckpt::StrategySpec& planner) {
        return std::make_unique<LoadWithBase>(
            dckpt::read_options(base, planner, dckpt::kLoadPlannerOptions));
      }));
  register_int8();
}

}  // namespace example
