#include "dist_checkpointing/load/key_check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "configs/policy/rename.h"
#include "dist_checkpointing/load/key_layout.h"
#include "dist_checkpointing/open/key_filter.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"
#include "mapping/base/wire_fields.h"
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
  std::vector<Asked> all;
  for (const Bytes& sent : comm.all_gather(message_of(mine)))
    all.push_back(read_message<Asked>(sent, "a rank's list of keys"));
  return all;
}

bool any_rank(bool mine, Communicator& comm) {
  const std::array<std::int64_t, 1> flag = {mine ? 1 : 0};
  return comm.all_reduce(flag, ReduceOp::kMax).front() != 0;
}

/// The requests of all ranks, and those of them that are not stored.
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

  /// Returns "this rank", "all 8 ranks" or "rank 3 of 8".
  std::string which(const std::vector<std::size_t>& ranks) const {
    if (size == 1) return "this rank";
    if (ranks.size() == size) return str_format("all {} ranks", grouped(size));
    return str_format("{} of {}", ranks_text(ranks), grouped(size));
  }

  KeySet asked;
  KeySet unexpected;
  std::vector<Misfit> misfits;
  std::vector<std::size_t> unexpected_on;  // ranks that request these keys
  std::vector<std::size_t> misfits_on;
  std::size_t size = 0;
};

std::string advice(const KeySet& asked, const KeySet& stored) {
  const std::vector<RenameRule> rules = suggest_rename(asked, stored);
  if (rules.empty()) return explain_by_layout(asked, stored);
  // Escapes have their usual meaning in YAML's double quotes.
  const auto yaml = [](const std::string& text) {
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

/// Returns a paragraph about keys stored in another form than requested; empty if there are none.
std::string misfits_as_text(const AllRanks& ranks) {
  if (ranks.misfits.empty()) return "";
  return str_format("the request does not fit what is stored{}:{}",
                    ranks.size == 1 ? "" : ", on " + ranks.which(ranks.misfits_on),
                    table_of(ranks.misfits));
}

/// Returns whether a rule applies to a key. Objects are matched by their unique keys, and by the
/// keys in these.
bool is_for(const MissingRule& rule, std::string_view key) {
  return glob_match(rule.keys, key) || glob_match(rule.keys, key.substr(0, key.rfind("/shard_")));
}

/// Returns the action of the first rule that matches a missing key; none if no rule matches.
std::optional<WhenMissing> action_for(std::span<const MissingRule> rules, const std::string& key) {
  const auto rule =
      std::ranges::find_if(rules, [&](const MissingRule& each) { return is_for(each, key); });
  return rule == rules.end() ? std::nullopt : std::optional(rule->action);
}

/// Joins two paragraphs, each of which may be empty.
std::string joined(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "\n") + second;
}

/// Returns Megatron's sentences, then the keys.
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

void warn_if_nothing_is_asked(const Metadata& stored, Communicator& comm, bool asks,
                              const std::string& consequence, Findings& findings) {
  if (any_rank(asks, comm) || comm.rank() != 0) return;
  if (stored.tensors.empty()) return;
  warn(findings,
       {FindingCode::kNothingRequested,
        str_format(
            "{}, none of the checkpoint's {}; load_state_dict() and load_plain_tensors() return "
            "tensors, load_sharded_metadata() a state dict that asks for all",
            consequence, counted(stored.tensors.size(), "tensor"))});
}

KeySet united(const KeySet& mine, Communicator& comm) {
  if (!any_rank(!mine.empty(), comm)) return {};
  return AllRanks(gather({{mine.begin(), mine.end()}, {}}, comm), {}).asked;
}

KeyDifference check_keys(const Asked& asked, const KeySet& stored, StrictHandling strict,
                         Communicator& comm, Findings& findings) {
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
    found.missing.erase(kCommonKey);  // every load reads it, none requests it
  }
  const bool misfits = raises(strict) && !ranks.misfits.empty();
  if (!tells || (found.missing.empty() && ranks.unexpected.empty() && !misfits)) return found;
  if (raises(strict)) {
    std::string message = describe(found.missing, ranks, stored);
    if (!message.empty())
      message += str_format("\nload.strict: {} goes on without these keys.",
                            checks_missing(strict) ? "log_all" : "log_unexpected");
    throw_error(ErrorCode::kMismatch, joined(message, misfits_as_text(ranks)));
  }
  if (comm.rank() == 0) {
    Finding differ{FindingCode::kKeysDiffer, describe(found.missing, ranks, stored)};
    std::ranges::set_union(found.missing, ranks.unexpected, std::back_inserter(differ.keys));
    warn(findings, std::move(differ));
  }
  return found;
}

void warn_of_idle_rules(std::span<const MissingRule> rules,
                        const std::vector<std::string>& requested, Communicator& comm,
                        Findings& findings) {
  if (rules.empty()) return;
  std::vector<std::int64_t> used;
  for (const MissingRule& rule : rules)
    used.push_back(
        std::ranges::any_of(requested, [&](const std::string& key) { return is_for(rule, key); }));
  used = comm.all_reduce(std::move(used), ReduceOp::kMax);
  if (std::ranges::find(used, 0) == used.end()) return;
  const KeySet all = united({requested.begin(), requested.end()}, comm);
  if (all.empty() || comm.rank() != 0) return;
  const std::vector<std::string> keys(all.begin(), all.end());
  std::string idle;
  std::vector<std::string> patterns;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i] != 0) continue;
    idle += str_format("\n  {}{}", quote(rules[i].keys), suggest_keys(rules[i].keys, keys));
    patterns.push_back(rules[i].keys);
  }
  warn(findings, {FindingCode::kNoEffect,
                  "these patterns of load.missing match no key that the state asks for, so their "
                  "rules have no effect:" +
                      idle,
                  std::move(patterns)});
}

DecidedKeys take_decided(std::vector<std::string>& asked, const KeySet& stored,
                         std::span<const MissingRule> rules, Communicator& comm,
                         Findings& findings) {
  if (rules.empty()) return {};
  DecidedKeys decided;
  KeySet warned;
  std::erase_if(asked, [&](const std::string& key) {
    if (stored.contains(key)) return false;
    const auto action = action_for(rules, key);
    if (!action) return false;
    if (*action == WhenMissing::kError)
      decided.refused.push_back(key);
    else
      decided.kept.insert(key);
    if (*action == WhenMissing::kWarn) warned.insert(key);
    return true;
  });
  const KeySet all = united(warned, comm);
  if (!all.empty() && comm.rank() == 0)
    warn(findings, {FindingCode::kValuesKept,
                    "the checkpoint does not have these keys, which keep the state's values "
                    "(load.missing):" +
                        table_of(all),
                    {all.begin(), all.end()}});
  return decided;
}

void require_stored(const Asked& asked, const StoredKeys& stored,
                    std::span<const MissingRule> rules, const std::string& headline,
                    Communicator& comm) {
  const bool fits = asked.misfits.empty() &&
                    std::all_of(asked.keys.begin(), asked.keys.end(),
                                [&](const std::string& key) { return stored.contains(key); });
  if (!any_rank(!fits, comm)) return;
  const KeySet names = stored.names();
  const std::vector<Asked> by_rank = gather(asked, comm);
  const auto paragraph = [&](bool refused, const std::string& beginning) {
    std::vector<Asked> part = by_rank;
    for (Asked& each : part)
      std::erase_if(each.keys, [&](const std::string& key) {
        return (action_for(rules, key) == WhenMissing::kError) != refused;
      });
    const AllRanks ranks(part, names);
    if (ranks.unexpected.empty()) return std::string();
    return str_format("{}{}:{}", beginning,
                      comm.size() == 1 ? "" : ", on " + ranks.which(ranks.unexpected_on),
                      table_of_unknown(ranks.unexpected, names));
  };
  const AllRanks ranks(by_rank, names);
  std::string message = joined(
      paragraph(false, headline),
      paragraph(true,
                "load.missing refuses keys that the checkpoint does not have (action: keep or warn "
                "in their rule leaves such keys as they are)"));
  if (!message.empty()) message += advice(ranks.asked, names);
  throw_error(ErrorCode::kMismatch, joined(message, misfits_as_text(ranks)));
}

}  // namespace dckpt
