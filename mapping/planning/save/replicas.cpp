#include "mapping/planning/save/replicas.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/planning/save/collect.h"
#include "mapping/planning/save/dedup.h"

namespace dckpt {
namespace {

bool has_contents(const PlannedKey& planned, std::size_t box) {
  return planned.kind == WriteItem::Kind::kObject || numel(planned.boxes.sizes(box)) != 0;
}

/// Returns the copies of a piece as positions in CollectedItems::items.
std::vector<std::vector<std::uint32_t>> copied_pieces(const PlannedKey& planned) {
  std::vector<std::vector<std::uint32_t>> pieces;
  const EqualBoxes equal(planned);
  for (std::uint32_t at = 0; at < planned.boxes.size(); ++at) {
    const std::uint32_t box = equal.at(at);
    if (!equal.is_first(box) || !has_contents(planned, box)) continue;
    const auto copies = equal.equals_of(box);
    if (copies.size() < 2) continue;
    std::vector<std::uint32_t>& items = pieces.emplace_back();
    for (const std::uint32_t copy : copies) items.push_back(planned.items[copy]);
  }
  return pieces;
}

/// The ranks of one piece by the hashes of their copies, those of the lowest ranks first.
std::vector<std::vector<std::size_t>> ranks_by_hash(
    const Replicas::Piece& piece, std::span<const std::vector<std::uint64_t>> hashes) {
  std::vector<std::pair<std::uint64_t, std::vector<std::size_t>>> groups;
  for (const Replicas::Copy& copy : piece.copies) {
    const std::uint64_t hash = hashes[copy.rank][copy.position];
    if (hash == 0) continue;
    auto group = std::ranges::find(groups, hash, [](const auto& known) { return known.first; });
    if (group == groups.end()) group = groups.insert(groups.end(), {hash, {}});
    if (group->second.empty() || group->second.back() != copy.rank)
      group->second.push_back(copy.rank);
  }
  std::vector<std::vector<std::size_t>> ranks;
  for (auto& [hash, of_group] : groups) ranks.push_back(std::move(of_group));
  return ranks;
}

}  // namespace

Replicas find_replicas(const LocalPlans& plans) {
  ItemCollector collector(false);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) collector.add(plans[rank]);
  const CollectedItems collected = std::move(collector).finish();
  Replicas replicas{.items = std::vector<std::vector<std::uint32_t>>(plans.size()), .pieces = {}};
  std::vector<std::pair<std::string, std::vector<std::uint32_t>>> pieces;
  for (const PlannedKey& planned : collected.keys) {
    if (planned.disagrees || planned.ascending) continue;
    for (auto& items : copied_pieces(planned)) pieces.emplace_back(planned.key, std::move(items));
  }
  const auto number_in_plan = [&](std::uint32_t item, std::size_t rank) {
    return static_cast<std::uint32_t>(item - collected.rank_begin[rank]);
  };
  for (const auto& [key, items] : pieces) {
    for (const std::uint32_t item : items) {
      const std::size_t rank = collected.rank_of(item);
      replicas.items[rank].push_back(number_in_plan(item, rank));
    }
  }
  for (auto& of_rank : replicas.items) std::ranges::sort(of_rank);
  for (auto& [key, items] : pieces) {
    Replicas::Piece& piece = replicas.pieces.emplace_back(Replicas::Piece{std::move(key), {}});
    for (const std::uint32_t item : items) {
      const std::size_t rank = collected.rank_of(item);
      const auto& of_rank = replicas.items[rank];
      const auto at = std::ranges::lower_bound(of_rank, number_in_plan(item, rank));
      piece.copies.push_back(
          {static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(at - of_rank.begin())});
    }
  }
  return replicas;
}

void write_items(WireWriter& writer, std::span<const std::uint32_t> items) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;  // distance from the last run, length
  std::uint64_t next = 0;
  for (const std::uint32_t item : items) {
    if (runs.empty() || item != next)
      runs.emplace_back(item - next, 1);
    else
      ++runs.back().second;
    next = std::uint64_t{item} + 1;
  }
  writer.number(runs.size());
  for (const auto& [distance, length] : runs) {
    writer.number(distance);
    writer.number(length);
  }
}

std::vector<std::uint32_t> read_items(WireReader& reader, std::uint64_t limit) {
  std::vector<std::uint32_t> items;
  std::uint64_t next = 0;
  for (std::size_t runs = reader.count(); runs > 0; --runs) {
    next += reader.number(limit - next);
    for (std::uint64_t length = reader.number(limit - next); length > 0; --length)
      items.push_back(static_cast<std::uint32_t>(next++));
  }
  return items;
}

std::vector<DifferingReplicas> differing_replicas(
    const Replicas& replicas, std::span<const std::vector<std::uint64_t>> hashes) {
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (rank < replicas.items.size() && hashes[rank].size() == replicas.items[rank].size())
      continue;
    throw_error(ErrorCode::kCorrupt, {.rank = static_cast<int>(rank)},
                "tells {} of replicas, but was asked for {}",
                counted(hashes[rank].size(), "hash", "hashes"),
                rank < replicas.items.size() ? replicas.items[rank].size() : 0);
  }
  std::map<std::vector<std::vector<std::size_t>>, std::set<std::string>> keys;
  for (const Replicas::Piece& piece : replicas.pieces) {
    auto ranks = ranks_by_hash(piece, hashes);
    if (ranks.size() > 1) keys[std::move(ranks)].insert(piece.key);
  }
  std::vector<DifferingReplicas> differing;
  for (auto& [ranks, of_ranks] : keys)
    differing.push_back({{of_ranks.begin(), of_ranks.end()}, ranks});
  return differing;
}

}  // namespace dckpt
