#include "dist_checkpointing/load/key_check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "configs/rename.h"
#include "dist_checkpointing/load/key_layout.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/ranks_text.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"
#include "strategies/contract/common_state.h"

namespace dckpt {
namespace {

KeySet difference(const KeySet& keys, const KeySet& without) {
  KeySet rest;
  std::set_difference(keys.begin(), keys.end(), without.begin(), without.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

std::vector<Asked> gather(const Asked& mine, Communicator& comm) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(mine.keys.size());
  for (const std::string& key : mine.keys) writer.text(key);
  writer.number(mine.misfits.size());
  for (const Misfit& misfit : mine.misfits) {
    for (const std::string* const text : {&misfit.what, &misfit.key, &misfit.advice})
      writer.text(*text);
  }
  std::vector<Asked> all;
  for (const Bytes& sent : comm.all_gather(bytes)) {
    WireReader reader(sent, "a rank's list of keys");
    Asked& asked = all.emplace_back();
    for (std::size_t count = reader.count(); count > 0; --count)
      asked.keys.push_back(reader.text());
    for (std::size_t count = reader.count(); count > 0; --count) {
      Misfit& misfit = asked.misfits.emplace_back();
      for (std::string* const text : {&misfit.what, &misfit.key, &misfit.advice})
        *text = reader.text();
    }
    reader.finish();
  }
  return all;
}

bool any_rank(bool mine, Communicator& comm) {
  const std::array<std::int64_t, 1> flag = {mine ? 1 : 0};
  return comm.all_reduce(flag, ReduceOp::kMax).front() != 0;
}

/// What all ranks ask for, and what of it is not stored.
struct AllRanks {
  AllRanks(const std::vector<Asked>& asked_by_rank, const KeySet& stored) {
    for (std::size_t rank = 0; rank < asked_by_rank.size(); ++rank) {
      const Asked& each = asked_by_rank[rank];
      const KeySet keys(each.keys.begin(), each.keys.end());
      const KeySet unknown = difference(keys, stored);
      asked.insert(keys.begin(), keys.end());
      unexpected.insert(unknown.begin(), unknown.end());
      misfits.insert(misfits.end(), each.misfits.begin(), each.misfits.end());
      if (!unknown.empty()) unexpected_on.push_back(rank);
      if (!each.misfits.empty()) misfits_on.push_back(rank);
    }
    size = asked_by_rank.size();
  }

  /// "this rank", "all 8 ranks", "rank 3 of 8"
  std::string which(const std::vector<std::size_t>& ranks) const {
    if (size == 1) return "this rank";
    if (ranks.size() == size) return str_format("all {} ranks", grouped(size));
    return str_format("{} of {}", ranks_text(ranks), grouped(size));
  }

  KeySet asked;
  KeySet unexpected;
  std::vector<Misfit> misfits;
  std::vector<std::size_t> unexpected_on;  // these ranks
  std::vector<std::size_t> misfits_on;
  std::size_t size = 0;
};

std::string advice(const KeySet& asked, const KeySet& stored) {
  const std::vector<RenameRule> rules = suggest_rename(asked, stored);
  if (rules.empty()) return explain_by_layout(asked, stored);
  const auto yaml = [](const std::string& text) {  // escapes mean in YAML's double quotes what they
                                                   // mean everywhere
    std::string out;
    for (const char c : printable(text, kMaxRenamePattern * 4))
      out += c == '"' ? std::string("\\\"") : std::string(1, c);
    return str_format("\"{}\"", out);
  };
  std::string list;
  for (const RenameRule& rule : rules)
    list += str_format("{}{{from: {}, to: {}}}", list.empty() ? "" : ", ", yaml(rule.from),
                       yaml(rule.to));
  return str_format(
      "\nAll of them are stored under other names. This in the policy gives them the names asked "
      "for:\n  load: {{rename: [{}]}}",
      list);
}

/// A paragraph about what is stored in another form than requested; empty if nothing is.
std::string misfits_as_text(const AllRanks& ranks) {
  if (ranks.misfits.empty()) return "";
  return str_format("the request does not fit what is stored{}:{}",
                    ranks.size == 1 ? "" : ", on " + ranks.which(ranks.misfits_on),
                    table_of(ranks.misfits));
}

/// Two paragraphs, each of which may be empty.
std::string joined(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "\n") + second;
}

/// Megatron's sentences, then the keys.
std::string describe(const KeySet& missing, const AllRanks& ranks, const KeySet& stored) {
  std::string message;
  if (!missing.empty())
    message += "Some keys found in the checkpoint are missing in the provided sharded state dict. ";
  if (!ranks.unexpected.empty())
    message +=
        "Unexpected keys (not found in the checkpoint) encountered in the provided sharded state "
        "dict. ";
  if (!missing.empty()) message += "\nMissing keys (for all ranks):" + table_of(missing);
  if (!ranks.unexpected.empty())
    message += str_format("\nUnexpected keys (for {}):{}{}", ranks.which(ranks.unexpected_on),
                          table_of_unknown(ranks.unexpected, stored), advice(ranks.asked, stored));
  return message;
}

}  // namespace

bool raises(StrictHandling strict) noexcept {
  return strict == StrictHandling::kRaiseUnexpected || strict == StrictHandling::kRaiseAll;
}
bool logs(StrictHandling strict) noexcept {
  return strict == StrictHandling::kLogUnexpected || strict == StrictHandling::kLogAll;
}
bool returns(StrictHandling strict) noexcept {
  return strict == StrictHandling::kReturnUnexpected || strict == StrictHandling::kReturnAll;
}
bool checks_unexpected(StrictHandling strict) noexcept {
  return strict != StrictHandling::kAssumeOkUnexpected;
}
bool checks_missing(StrictHandling strict) noexcept {
  return strict == StrictHandling::kLogAll || strict == StrictHandling::kRaiseAll ||
         strict == StrictHandling::kReturnAll;
}

KeySet united(const KeySet& mine, Communicator& comm) {
  if (!any_rank(!mine.empty(), comm)) return {};
  return AllRanks(gather({{mine.begin(), mine.end()}, {}}, comm), {}).asked;
}

KeyDifference check_keys(const Asked& asked, const KeySet& stored, StrictHandling strict,
                         Communicator& comm) {
  if (!checks_unexpected(strict)) return {};
  KeyDifference found;
  for (const std::string& key : asked.keys) {
    if (!stored.contains(key)) found.unexpected.insert(key);
  }
  const bool tells = raises(strict) || logs(strict);
  const bool differs = !found.unexpected.empty() || (raises(strict) && !asked.misfits.empty());
  if (!checks_missing(strict) && (!tells || !any_rank(differs, comm))) return found;

  const AllRanks ranks(gather(asked, comm), stored);
  if (checks_missing(strict)) {
    found.missing = difference(stored, ranks.asked);
    found.missing.erase(kCommonKey);  // every load takes it, none requests it
  }
  const bool misfits = raises(strict) && !ranks.misfits.empty();
  if (!tells || (found.missing.empty() && ranks.unexpected.empty() && !misfits)) return found;
  if (raises(strict)) {
    std::string message = describe(found.missing, ranks, stored);
    if (!message.empty())
      message += str_format("\nload.strict: {} goes on without these keys.",
                            checks_missing(strict) ? "log_all" : "log_unexpected");
    throw CheckpointError(ErrorCode::kMismatch, joined(message, misfits_as_text(ranks)));
  }
  if (comm.rank() == 0) log_warning(describe(found.missing, ranks, stored));
  return found;
}

DecidedKeys take_decided(std::vector<std::string>& asked, const KeySet& stored,
                         std::span<const MissingRule> rules, Communicator& comm) {
  if (rules.empty()) return {};
  DecidedKeys decided;
  KeySet warned;
  std::erase_if(asked, [&](const std::string& key) {
    if (stored.contains(key)) return false;
    const auto rule = std::ranges::find_if(
        rules, [&](const MissingRule& each) { return glob_match(each.keys, key); });
    if (rule == rules.end()) return false;
    if (rule->action == WhenMissing::kError)
      decided.refused.push_back(key);
    else
      decided.kept.insert(key);
    if (rule->action == WhenMissing::kWarn) warned.insert(key);
    return true;
  });
  const KeySet all = united(warned, comm);
  if (!all.empty() && comm.rank() == 0)
    log_warning(
        "the checkpoint does not have these keys, which keep the state's values "
        "(load.missing):" +
        table_of(all));
  return decided;
}

void require_stored(const Asked& asked, const StoredKeys& stored, const std::string& headline,
                    Communicator& comm) {
  const bool fits = asked.misfits.empty() &&
                    std::all_of(asked.keys.begin(), asked.keys.end(),
                                [&](const std::string& key) { return stored.contains(key); });
  if (!any_rank(!fits, comm)) return;
  const KeySet names = stored.names();
  const AllRanks ranks(gather(asked, comm), names);
  const std::string where = comm.size() == 1 ? "" : ", on " + ranks.which(ranks.unexpected_on);
  std::string message;
  if (!ranks.unexpected.empty())
    message = str_format("{}{}:{}{}", headline, where, table_of_unknown(ranks.unexpected, names),
                         advice(ranks.asked, names));
  throw CheckpointError(ErrorCode::kMismatch, joined(message, misfits_as_text(ranks)));
}

}  // namespace dckpt
