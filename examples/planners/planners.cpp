#include "planners.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace example {
namespace {

/// Stores weights of float32 as bfloat16; the optimizer state is unchanged.
class BFloat16Weights final : public dckpt::MCoreSavePlanner {
 public:
  dckpt::SavePlan create_local_plan() override {
    dckpt::SavePlan plan = MCoreSavePlanner::create_local_plan();
    for (dckpt::WriteItem& item : plan) {
      if (item.kind != dckpt::WriteItem::Kind::kTensor || item.key.starts_with("optimizer.") ||
          item.properties.dtype != dckpt::DType::kFloat32)
        continue;
      item.properties.dtype = dckpt::DType::kBFloat16;
      item.nbytes /= 2;
    }
    return plan;
  }
  bool resolves(const dckpt::WriteItem& item) const override {
    return item.kind == dckpt::WriteItem::Kind::kTensor &&
           item.properties.dtype == dckpt::DType::kBFloat16;
  }
  dckpt::Tensor resolve_tensor(const dckpt::WriteItem& item, dckpt::Tensor data) const override {
    return dckpt::to_dtype(data, item.properties.dtype);
  }
};

struct NodeOptions {
  int ranks_per_node = 8;
};

/// Has replicas written on the node that has written least, since the ranks of a node share its
/// disk and its link to shared storage.
class WritersByNode final : public dckpt::MCoreSavePlanner {
 public:
  explicit WritersByNode(const NodeOptions& options) : options_(options) {}

 protected:
  void choose_writers(std::span<dckpt::WriterChoice> parts) override {
    std::map<int, std::uint64_t> of_node;
    std::map<int, std::uint64_t> of_rank;
    for (dckpt::WriterChoice& part : parts) {
      const auto busy = [&](int rank) {
        return std::pair(of_node[rank / options_.ranks_per_node], of_rank[rank]);
      };
      part.writer = *std::ranges::min_element(part.ranks, {}, busy);
      of_node[part.writer / options_.ranks_per_node] += part.nbytes;
      of_rank[part.writer] += part.nbytes;
    }
  }

 private:
  NodeOptions options_;
};

struct WithoutOptions {
  std::vector<std::string> keys{};
};

/// Leaves out frozen parameters, which are in the base model's checkpoint.
class WithoutKeys final : public dckpt::MCoreSavePlanner {
 public:
  explicit WithoutKeys(WithoutOptions options) : options_(std::move(options)) {}
  dckpt::SavePlan create_local_plan() override {
    dckpt::SavePlan plan = MCoreSavePlanner::create_local_plan();
    std::erase_if(plan, [&](const dckpt::WriteItem& item) {
      return std::ranges::any_of(
          options_.keys, [&](const std::string& prefix) { return item.key.starts_with(prefix); });
    });
    return plan;
  }

 private:
  WithoutOptions options_;
};

std::mutex log_mutex;
std::vector<std::string> log_lines;

/// Stores everything unchanged and records a checksum of each part of a tensor.
class ChecksumLog final : public dckpt::MCoreSavePlanner {
 public:
  bool resolves(const dckpt::WriteItem& item) const override {
    return item.kind == dckpt::WriteItem::Kind::kTensor;
  }
  dckpt::Tensor resolve_tensor(const dckpt::WriteItem& item, dckpt::Tensor data) const override {
    const std::string line =
        item.key + " " + to_string(item.chunk) + " " + std::to_string(dckpt::crc32(data.bytes()));
    const std::lock_guard lock(log_mutex);
    log_lines.push_back(line);
    return data;
  }
};

}  // namespace

void register_planners() {
  const dckpt::config::Schema<NodeOptions> by_node{{dckpt::config::field(
      "ranks_per_node", &NodeOptions::ranks_per_node, dckpt::config::integer(1, 1 << 20))}};
  const dckpt::config::Schema<WithoutOptions> without{{dckpt::config::field(
      "keys", &WithoutOptions::keys,
      dckpt::config::list_of(dckpt::config::text("a prefix of keys"), "a list of prefixes"))}};

  dckpt::register_planner(
      dckpt::save_planner_entry<BFloat16Weights>("bf16_weights", "float32 weights as bfloat16"));
  dckpt::register_planner(dckpt::save_planner_entry<WritersByNode>(
      "by_node", "replicas are written by the node that has written least",
      [by_node](const dckpt::StrategySpec& planner) {
        return std::make_unique<WritersByNode>(
            dckpt::read_options(by_node, planner, dckpt::kSavePlannerOptions));
      }));
  dckpt::register_planner(dckpt::save_planner_entry<WithoutKeys>(
      "without", "leaves keys out", [without](const dckpt::StrategySpec& planner) {
        return std::make_unique<WithoutKeys>(
            dckpt::read_options(without, planner, dckpt::kSavePlannerOptions));
      }));
  dckpt::register_planner(dckpt::save_planner_entry<ChecksumLog>(
      "checksum_log", "notes a CRC-32 of each part of a tensor"));
}

std::vector<std::string> checksum_log() {
  const std::lock_guard lock(log_mutex);
  std::vector<std::string> sorted = log_lines;
  std::ranges::sort(sorted);
  return sorted;
}

}  // namespace example
