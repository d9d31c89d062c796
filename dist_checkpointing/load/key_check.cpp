#include "dist_checkpointing/load/key_check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "configs/rename.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

/// The common state where it is an object among the others: every load takes it, none asks for it.
const std::string kCommonState = "common_state";

KeySet difference(const KeySet& keys, const KeySet& without) {
  KeySet rest;
  std::set_difference(keys.begin(), keys.end(), without.begin(), without.end(), std::inserter(rest, rest.end()));
  return rest;
}

std::vector<KeySet> gather_keys(const KeySet& mine, Communicator& comm) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(mine.size());
  for (const std::string& key : mine) writer.text(key);
  std::vector<KeySet> all;
  for (const Bytes& sent : comm.all_gather(bytes)) {
    WireReader reader(sent, "a rank's list of keys");
    KeySet keys;
    for (std::size_t count = reader.count(); count > 0; --count) keys.insert(keys.end(), reader.text());
    reader.finish();
    all.push_back(std::move(keys));
  }
  return all;
}

bool any_rank(bool mine, Communicator& comm) {
  const std::array<std::int64_t, 1> flag = {mine ? 1 : 0};
  return comm.all_reduce(flag, ReduceOp::kMax).front() != 0;
}

/// What all ranks ask for, and what of it is not stored.
struct AllRanks {
  AllRanks(const std::vector<KeySet>& asked_by_rank, const KeySet& stored) {
    for (std::size_t rank = 0; rank < asked_by_rank.size(); ++rank) {
      const KeySet unknown = difference(asked_by_rank[rank], stored);
      asked.insert(asked_by_rank[rank].begin(), asked_by_rank[rank].end());
      unexpected.insert(unknown.begin(), unknown.end());
      if (!unknown.empty()) ranks.push_back(rank);
    }
    size = asked_by_rank.size();
  }

  /// "this rank", "all 8 ranks", "rank 3 of 8", "ranks 1, 2, 5 and 3 more of 8"
  std::string which_ranks() const {
    constexpr std::size_t kShownRanks = 8;
    if (size == 1) return "this rank";
    if (ranks.size() == size) return "all " + grouped(size) + " ranks";
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(ranks.size(), kShownRanks); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (ranks.size() > kShownRanks) text += " and " + grouped(ranks.size() - kShownRanks) + " more";
    return text + " of " + grouped(size);
  }

  KeySet asked;
  KeySet unexpected;
  std::vector<std::size_t> ranks;  // that ask for something unexpected
  std::size_t size = 0;
};

std::string advice(const KeySet& asked, const KeySet& stored) {
  const auto rule = suggest_rename(asked, stored);
  if (!rule) return "";
  const auto yaml = [](const std::string& text) {  // escapes mean in YAML's double quotes what they mean everywhere
    std::string out;
    for (const char c : printable(text, kMaxRenamePattern * 4)) out += c == '"' ? std::string("\\\"") : std::string(1, c);
    return "\"" + out + "\"";
  };
  return "\nAll of them are stored under another prefix. This in the policy gives them the names asked for:\n  load: {rename: [{from: " + yaml(rule->from) + ", to: " + yaml(rule->to) + "}]}";
}

/// Megatron's sentences, then the keys.
std::string describe(const KeySet& missing, const AllRanks& ranks, const KeySet& stored) {
  std::string message;
  if (!missing.empty()) message += "Some keys found in the checkpoint are missing in the provided sharded state dict. ";
  if (!ranks.unexpected.empty()) message += "Unexpected keys (not found in the checkpoint) encountered in the provided sharded state dict. ";
  if (!missing.empty()) message += "\nMissing keys (for all ranks):" + table_of(missing);
  if (!ranks.unexpected.empty()) message += "\nUnexpected keys (for " + ranks.which_ranks() + "):" + table_of_unknown(ranks.unexpected, stored) + advice(ranks.asked, stored);
  return message;
}

}  // namespace

bool raises(Strict strict) noexcept { return strict == Strict::kRaiseUnexpected || strict == Strict::kRaiseAll; }
bool logs(Strict strict) noexcept { return strict == Strict::kLogUnexpected || strict == Strict::kLogAll; }
bool returns(Strict strict) noexcept { return strict == Strict::kReturnUnexpected || strict == Strict::kReturnAll; }
bool checks_unexpected(Strict strict) noexcept { return strict != Strict::kAssumeOkUnexpected; }
bool checks_missing(Strict strict) noexcept { return strict == Strict::kLogAll || strict == Strict::kRaiseAll || strict == Strict::kReturnAll; }

KeyDifference check_keys(const KeySet& asked, const KeySet& stored, Strict strict, Communicator& comm) {
  if (!checks_unexpected(strict)) return {};
  KeyDifference found{{}, difference(asked, stored)};
  const bool tells = raises(strict) || logs(strict);
  if (!checks_missing(strict) && (!tells || !any_rank(!found.unexpected.empty(), comm))) return found;

  const AllRanks ranks(gather_keys(asked, comm), stored);
  if (checks_missing(strict)) {
    found.missing = difference(stored, ranks.asked);
    found.missing.erase(kCommonState);
  }
  if (!tells || (found.missing.empty() && ranks.unexpected.empty())) return found;
  if (raises(strict)) throw CheckpointError(ErrorCode::kMismatch, describe(found.missing, ranks, stored));
  if (comm.rank() == 0) log_warning(describe(found.missing, ranks, stored));
  return found;
}

void require_stored(const KeySet& asked, const StoredKeys& stored, const std::string& headline, Communicator& comm) {
  if (!any_rank(!std::all_of(asked.begin(), asked.end(), [&](const std::string& key) { return stored.contains(key); }), comm)) return;
  const KeySet names = stored.names();
  const AllRanks ranks(gather_keys(asked, comm), names);
  const std::string where = comm.size() == 1 ? "" : ", on " + ranks.which_ranks();
  throw CheckpointError(ErrorCode::kMismatch, headline + where + ":" + table_of_unknown(ranks.unexpected, names) + advice(ranks.asked, names));
}

}  // namespace dckpt
