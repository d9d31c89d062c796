// Messages. A proposal is one byte of options, one byte that says what follows, and an encoded plan
// or the 16 bytes of its fingerprint. An answer is one byte that says what follows, and nothing or
// a list of items: their number, then for each the distance from the item before and whether it is
// a piece, then the piece.

#include "mapping/planning/save_planner.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

enum Content : std::uint8_t { kAnew = 0, kAsLastTime = 1 };

void append_fingerprint(Bytes& message, ByteView plan) {
  const Fingerprint fingerprint = fingerprint_of(plan);
  append_le(message, fingerprint.low);
  append_le(message, fingerprint.high);
}

/// What ranks must agree on, in a byte.
std::uint8_t code_of(const PlannerOptions& options, bool use_replicas) noexcept {
  return static_cast<std::uint8_t>(
      static_cast<unsigned>(options.kind) | static_cast<unsigned>(options.dedup) << 2 |
      (options.cache ? 16U : 0U) | (options.validate ? 32U : 0U) |
      (options.split_replicas ? 64U : 0U) | (use_replicas ? 128U : 0U));
}

std::string describe_code(std::uint8_t code) {
  const auto on = [&](unsigned bit) { return (code & bit) != 0 ? "true" : "false"; };
  return "kind " + std::string(to_string(static_cast<PlannerKind>(code & 3U))) + ", dedup " +
         std::string(to_string(static_cast<Dedup>(code >> 2 & 3U))) + ", cache " + on(16) +
         ", validate " + on(32) + ", split_replicas " + on(64) + ", fully parallel " + on(128);
}

/// How `plan` differs from the one of last time, which may come from a checkpoint.
std::string what_changed(ByteView before, const SavePlan& plan) {
  SavePlan old;
  try {
    old = decode_plan(before);
  } catch (const CheckpointError&) {
    return "the plan of last time cannot be read";
  }
  std::unordered_map<std::string_view, std::vector<const WriteItem*>> remaining;
  for (const WriteItem& item : old) remaining[item.key].push_back(&item);
  for (const WriteItem& item : plan) {
    const auto found = remaining.find(item.key);
    if (found == remaining.end()) return "key " + quote(item.key) + " is new";
    WriteItem travelled = item;
    if (item.kind == WriteItem::Kind::kObject) travelled.nbytes = 0;
    if (std::erase_if(found->second,
                      [&](const WriteItem* candidate) { return *candidate == travelled; }) == 0) {
      return "key " + quote(item.key) + " has another shape, dtype, place or replica";
    }
  }
  for (const WriteItem& item : old) {
    if (!remaining[item.key].empty())
      return "key " + quote(item.key) + " is gone, or fewer parts of it are here";
  }
  return "the order of the keys is another";
}

Bytes encode_answer(std::span<const AssignedItem> items) {
  Bytes bytes{std::byte{kAnew}};
  WireWriter writer(bytes);
  writer.number(items.size());
  std::uint32_t next = 0;
  for (const AssignedItem& assigned : items) {
    writer.number(std::uint64_t{assigned.item - next} << 1 | (assigned.end != 0 ? 1U : 0U));
    next = assigned.item + 1;
    if (assigned.end == 0) continue;
    writer.number(static_cast<std::uint64_t>(assigned.begin));
    writer.number(static_cast<std::uint64_t>(assigned.end));
  }
  return bytes;
}

std::vector<AssignedItem> decode_answer(ByteView bytes, const SavePlan& plan) {
  WireReader reader(bytes, "the final plan from the coordinator");
  std::vector<AssignedItem> items;
  std::uint64_t next = 0;
  for (std::size_t count = reader.count(); count > 0; --count) {
    const std::uint64_t code = reader.number(UINT32_MAX);
    next += code >> 1;
    if (next >= plan.size()) reader.malformed("it names an item that the local plan does not have");
    AssignedItem assigned{static_cast<std::uint32_t>(next++)};
    if ((code & 1U) != 0) {
      assigned.begin = reader.signed_number();
      assigned.end = reader.signed_number();
      const Shape& sizes = plan[assigned.item].chunk.sizes;
      std::size_t axis = 0;
      while (axis < sizes.size() && sizes[axis] == 1) ++axis;
      if (axis == sizes.size() || assigned.begin >= assigned.end || assigned.end > sizes[axis])
        reader.malformed("it names a piece that the item does not have");
    }
    items.push_back(assigned);
  }
  reader.finish();
  return items;
}

}  // namespace

SavePlanner::SavePlanner(const PlannerOptions& options, bool use_replicas)
    : options_(options), use_replicas_(use_replicas) {}

Bytes SavePlanner::create_local_plan(SavePlan plan) {
  plan_ = std::move(plan);
  Bytes encoded = encode_plan(plan_);
  Bytes proposal{std::byte{code_of(options_, use_replicas_)}};
  why_planned_.clear();
  if (committed_ && encoded == encoded_) {
    proposal.push_back(std::byte{kAsLastTime});
    append_fingerprint(proposal, encoded_);
    return proposal;
  }
  why_planned_ = !options_.cache ? "planner.cache is off"
                 : committed_    ? what_changed(encoded_, plan_)
                 : failed_       ? "the save before failed"
                                 : "first save";
  committed_ = false;
  encoded_ = std::move(encoded);
  proposal.push_back(std::byte{kAnew});
  proposal.insert(proposal.end(), encoded_.begin(), encoded_.end());
  return proposal;
}

std::vector<Bytes> SavePlanner::create_global_plan(std::span<const Bytes> proposals) {
  known_.resize(proposals.size());
  std::vector<bool> changed(proposals.size(), false);
  hit_ = true;
  for (std::size_t rank = 0; rank < proposals.size(); ++rank) {
    with_context({.rank = static_cast<int>(rank)}, [&] {
      const ByteView proposal = proposals[rank];
      if (proposal.size() < 2)
        throw CheckpointError(ErrorCode::kCorrupt, "the proposal of a plan has " +
                                                       std::to_string(proposal.size()) + " bytes");
      const auto code = static_cast<std::uint8_t>(proposal[0]);
      if (code != code_of(options_, use_replicas_)) {
        throw CheckpointError(ErrorCode::kMismatch,
                              "saves with other planner options (" + describe_code(code) +
                                  ") than the coordinator (" +
                                  describe_code(code_of(options_, use_replicas_)) +
                                  "); all ranks need the same policy");
      }
      const ByteView content = proposal.subspan(2);
      if (proposal[1] == std::byte{kAsLastTime}) {
        Bytes expected;
        append_fingerprint(expected, known_[rank].plan);
        if (!std::ranges::equal(content, expected)) {
          throw CheckpointError(ErrorCode::kMismatch,
                                "proposes the plan of the last save, which is not the one that the "
                                "coordinator remembers; use one planner per rank for all saves, "
                                "and forget() after a save that failed");
        }
        return;
      }
      changed[rank] = true;
      hit_ = false;
      known_[rank].plan.assign(content.begin(), content.end());
    });
  }
  const bool as_last_time = hit_ && planned_;
  if (!as_last_time) {
    planned_ = false;
    GlobalPlanner planner({.kind = options_.kind,
                           .dedup = options_.dedup,
                           .use_replicas = use_replicas_,
                           .split_replicas = options_.split_replicas,
                           .validate = options_.validate});
    for (std::size_t rank = 0; rank < known_.size(); ++rank) {
      planner.add(with_context({.rank = static_cast<int>(rank)},
                               [&] { return decode_plan(known_[rank].plan); }));
    }
    global_ = std::move(planner).finish();
    planned_ = true;
  }
  std::vector<Bytes> answers;
  for (std::size_t rank = 0; rank < known_.size(); ++rank) {
    if (as_last_time || (!changed[rank] && known_[rank].items == global_.items[rank])) {
      answers.push_back({std::byte{kAsLastTime}});
      continue;
    }
    answers.push_back(encode_answer(global_.items[rank]));
    known_[rank].items = global_.items[rank];
  }
  return answers;
}

const SavePlan& SavePlanner::finish_plan(ByteView answer) {
  if (answer.empty() || answer[0] > std::byte{kAsLastTime} ||
      (answer[0] == std::byte{kAsLastTime} && (!committed_ || !items_ || answer.size() != 1))) {
    throw CheckpointError(ErrorCode::kCorrupt, "the final plan from the coordinator is malformed");
  }
  if (answer[0] == std::byte{kAnew}) items_ = decode_answer(answer.subspan(1), plan_);
  final_ = final_plan(plan_, *items_);
  return final_;
}

std::vector<KeptPlan> SavePlanner::kept_plans() const {
  std::vector<KeptPlan> kept;
  for (std::size_t rank = 0; rank < known_.size(); ++rank) {
    const Bytes& proposed = known_[rank].plan;
    kept.push_back({proposed, encode_plan(final_plan(decode_plan(proposed), global_.items[rank]))});
  }
  return kept;
}

void SavePlanner::seed(Bytes own, std::vector<Bytes> all) {
  forget();
  failed_ = false;
  if (!options_.cache) return;
  encoded_ = std::move(own);
  committed_ = true;
  for (Bytes& plan : all) known_.push_back({std::move(plan)});
}

void SavePlanner::commit() {
  committed_ = options_.cache;
  if (!options_.cache) forget();
  failed_ = false;
}

void SavePlanner::forget() {
  committed_ = false;
  encoded_.clear();
  items_.reset();
  known_.clear();
  planned_ = false;
  failed_ = true;
}

}  // namespace dckpt
