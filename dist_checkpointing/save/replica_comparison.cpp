#include "dist_checkpointing/save/replica_comparison.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_set>
#include <utility>

#include "configs/policy/policy.h"
#include "dist_checkpointing/open/key_groups.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/ranks/same_on_all_ranks.h"
#include "dist_checkpointing/save/check_replicas.h"
#include "dist_checkpointing/save/hash_items.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/ranks_text.h"
#include "mapping/base/wire_fields.h"
#include "mapping/planning/save/messages.h"
#include "mapping/state/sharded_object.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/phase_label.h"
#include "strategies/registry/registry.h"

namespace dckpt {
namespace {

constexpr const char* kComparingReplicas = "comparing the replicas of the ranks";
constexpr std::size_t kShownPartitions = 8;

/// Returns "rank 0 and ranks 1, 3".
std::string partition_text(const DifferingReplicas& differing) {
  const auto& first = differing.ranks.front();
  if (first.size() == 1 &&
      std::ranges::all_of(differing.ranks, [&](const auto& ranks) { return ranks == first; }))
    return ranks_text(first) + ", which holds several copies,";
  std::string text;
  for (std::size_t i = 0; i < std::min(differing.ranks.size(), kShownPartitions); ++i)
    text += (i == 0 ? "" : " and ") + ranks_text(differing.ranks[i]);
  if (differing.ranks.size() > kShownPartitions)
    text += str_format(" and {}", counted(differing.ranks.size() - kShownPartitions, "more group"));
  return text;
}

bool is_extra_state(const std::string& object) {
  const auto unique = ShardedObject::parse_unique_key(object);
  return (unique ? unique->key : object).ends_with("_extra_state");
}

}  // namespace

Bytes hash_replicas(const DescribedState& described, const SavePlan& plan,
                    std::span<const std::uint32_t> items, CheckReplicas how, int threads) {
  std::unordered_set<std::string_view> plain;  // these are compared by compare_plain_leaves()
  for (const PlainLeaf& leaf : described.plain) plain.insert(leaf.key);
  std::vector<std::uint64_t> hashes(items.size(), 0);
  std::vector<WriteItem> tensors;
  std::vector<std::size_t> of_tensors;  // positions in `hashes`
  for (std::size_t i = 0; i < items.size(); ++i) {
    const WriteItem& item = plan[items[i]];
    if (plain.contains(item.key)) continue;
    if (item.kind == WriteItem::Kind::kTensor) {
      tensors.push_back(item);
      of_tensors.push_back(i);
    } else if (how != CheckReplicas::kAll && is_extra_state(item.key)) {
      continue;  // such as the scales of FP8, which ranks may reduce within their own groups only
    } else if (const Bytes& bytes = described.object_bytes[item.source]; !bytes.empty()) {
      hashes[i] = std::max<std::uint64_t>(fingerprint_of(bytes).low, 1);
    }
  }
  const std::vector<std::uint64_t> found = hash_items(described.tensors, tensors, how, threads);
  for (std::size_t i = 0; i < found.size(); ++i) hashes[of_tensors[i]] = found[i];
  return message_of(hashes);
}

void tell_differing_replicas(const Replicas& replicas, const std::vector<Bytes>& hashes,
                             Findings& findings) {
  std::vector<std::vector<std::uint64_t>> of_ranks;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    of_ranks.push_back(with_context({.rank = static_cast<int>(rank)}, [&] {
      return read_message<std::vector<std::uint64_t>>(hashes[rank],
                                                      "the hashes of a rank's replicas");
    }));
  const std::vector<DifferingReplicas> differing = differing_replicas(replicas, of_ranks);
  if (differing.empty()) return;
  std::string list;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < differing.size(); ++i) {
    keys.insert(keys.end(), differing[i].keys.begin(), differing[i].keys.end());
    if (i == kShownPartitions)
      list += str_format("\n  … and {}", counted(differing.size() - i, "more group"));
    if (i >= kShownPartitions) continue;
    list += str_format("\n  {} differ in:{}", partition_text(differing[i]),
                       table_of({differing[i].keys.begin(), differing[i].keys.end()}));
  }
  warn(findings,
       {FindingCode::kRanksDiffer,
        "replicas differ between ranks: one rank's is stored for all, or, where replicas share the "
        "writing, a mixture. Copy what is right to the other ranks, or describe what belongs to a "
        "rank with a key or box of its own:" +
            list,
        std::move(keys)});
}

Findings check_replicas(const StateDict& state, const SaveOptions& given, Communicator& comm) try {
  const PhaseLabel label(kComparingReplicas);
  SaveOptions options = canonical(with_planner_rules(given));
  if (options.check_replicas == CheckReplicas::kOff) options.check_replicas = CheckReplicas::kAll;
  const std::array<SharedArgument, 1> arguments{{{"options", to_yaml(Policy{.save = options})}}};
  require_same(comm, "compare replicas", arguments);
  DescribedState described;
  SavePlan plan;
  Bytes encoded;
  agree(comm, "describing the state dict", [&] {
    described = describe_state(state, options, comm.rank());
    plan = plan_local_save(described.shards, options.flattened);
    encoded = encode_plan(plan);
  });
  const std::vector<Bytes> plans = comm.gather(encoded, 0);
  Replicas replicas;
  std::vector<Bytes> requests;
  decide(comm, [&] {
    const std::vector<ByteView> views(plans.begin(), plans.end());
    replicas = find_replicas(LocalPlans(std::span<const ByteView>(views)));
    for (const std::vector<std::uint32_t>& items : replicas.items) {
      WireWriter writer(requests.emplace_back());
      write_items(writer, items);
    }
  });
  const Bytes request = comm.scatter(requests, 0);
  Bytes hashes;
  const auto failure = failure_of([&] {
    WireReader reader(request, "the replicas that rank 0 compares");
    hashes = hash_replicas(described, plan, read_items(reader, plan.size()), options.check_replicas,
                           options.io.threads);
  });
  const Bytes told =
      agree(comm, kComparingReplicas, failure, hashes, [&](const std::vector<Bytes>& ranks) {
        Findings findings;
        tell_differing_replicas(replicas, ranks, findings);
        return message_of(findings);
      });
  return read_message<Findings>(told, "the findings of rank 0");
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
