#include "dist_checkpointing/save/common_comparison.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "dist_checkpointing/ranks/same_on_all_ranks.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/key_path.h"
#include "mapping/base/ranks_text.h"
#include "mapping/state/flatten.h"
#include "mapping/state/members.h"
#include "mapping/state/tree.h"
#include "strategies/comm/agree.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

constexpr std::size_t kShown = 20;
constexpr std::size_t kShownTexts = 4;  // shown groups of ranks with the same differences
constexpr const char* kComparingCommon = "comparing the common state";

/// Returns whether a value contains a tensor. Values nested deeper than a state dict may be have no
/// tensors to save.
bool holds_tensor(const Value& value, std::size_t depth = 0) {
  if (value.is_tensor()) return true;
  if (depth > kMaxTreeDepth) return false;
  const auto holds = [&](const Value& item) { return holds_tensor(item, depth + 1); };
  if (value.is_sequence()) return std::ranges::any_of(value.items(), holds);
  return value.is_dict() &&
         std::ranges::any_of(value.as_dict(), [&](const auto& item) { return holds(item.second); });
}

class CommonComparison {
 public:
  void compare(const Value& a, const Value& b) {
    if (have_members(a, b)) {
      for_each_member(a, b, [&](const Value& key, const Value* of_a, const Value* of_b) {
        path_.push_back(element(key));
        if (path_.size() <= kMaxTreeDepth) compare_member(of_a, of_b);
        path_.pop_back();
        return true;
      });
      return;
    }
    if (a == b) return;
    const std::string there = short_text(b);
    const std::string first = short_text(a);
    add(there == first ? str_format("{} differs ({})", name(), there)
                       : str_format("{} is {}, not {}", name(), there, first),
        b);
  }

  CommonDifference result() && {
    if (count_ > kShown) found_.text += str_format("; … and {} more", grouped(count_ - kShown));
    return std::move(found_);
  }

 private:
  std::string name() const { return quote(dotted_name(path_)); }

  void add(const std::string& difference) {
    if (++count_ <= kShown) found_.text += (count_ == 1 ? "" : "; ") + difference;
  }
  void add(const std::string& difference, const Value& of_second) {
    add(difference);
    if (holds_tensor(of_second)) found_.lost.push_back(dotted_name(path_));
  }
  void compare_member(const Value* of_a, const Value* of_b) {
    if (of_b == nullptr)
      add(str_format("{} is missing", name()));
    else if (of_a == nullptr)
      add(str_format("{} is only there", name()), *of_b);
    else
      compare(*of_a, *of_b);
  }

  static PathElement element(const Value& key) {
    if (key.is_int()) return key.as_int();
    return key.is_str() ? key.as_str() : std::string(to_string(key.kind()));
  }

  KeyPath path_;
  CommonDifference found_;
  std::size_t count_ = 0;
};

/// Returns "\n  on ranks 1, 3: 'lr' is 1, not 0.1", for each text.
std::string by_rank(const std::vector<Bytes>& texts) {
  std::map<std::string, std::vector<std::size_t>> ranks;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) ranks[std::string(as_text(texts[rank]))].push_back(rank);
  }
  std::string list;
  std::size_t shown = 0;
  for (const auto& [text, of_these] : ranks) {
    if (shown++ == kShownTexts)
      return str_format("{}\n  … and {}", list,
                        counted(ranks.size() - kShownTexts, "more difference"));
    list += str_format("\n  on {}: {}", ranks_text(of_these), text);
  }
  return list;
}

}  // namespace

CommonDifference compare_common(const Value& of_rank_0, const Value& mine) {
  CommonComparison comparison;
  comparison.compare(of_rank_0, mine);
  return std::move(comparison).result();
}

void compare_common_states(const Value& mine, Communicator& comm, Findings& findings) {
  if (comm.size() == 1) return;
  Bytes bytes;
  Fingerprint fingerprint;
  agree(comm, kComparingCommon, [&] {
    bytes = save_torch_file(mine);
    fingerprint = fingerprint_of(bytes);
  });
  if (is_same_on_all_ranks(fingerprint, comm)) return;
  const Bytes of_rank_0 = comm.broadcast(bytes, 0);
  CommonDifference difference;
  agree(comm, kComparingCommon, [&] {
    if (comm.rank() == 0) return;
    difference = compare_common(load_torch_bytes(of_rank_0, "the common state of rank 0"), mine);
    if (difference.lost.empty()) return;
    throw_error(ErrorCode::kMismatch, {.rank = comm.rank()},
                "the common state is saved from rank 0 alone, and these tensors are not the "
                "same there: {}; describe what ranks hold parts of with ShardedTensor",
                quoted_list(difference.lost, kShown));
  });
  const std::vector<Bytes> texts = comm.gather(as_bytes(difference.text), 0);
  if (comm.rank() != 0) return;
  if (const std::string list = by_rank(texts); !list.empty())
    warn(findings, {FindingCode::kRanksDiffer,
                    "the common state differs from rank 0's, which is saved:" + list});
}

}  // namespace dckpt
