#include "dist_checkpointing/save/common_comparison.h"

#include <algorithm>
#include <array>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/key_path.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/state/tree.h"
#include "strategies/comm/agree.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

constexpr std::size_t kShown = 20;  // of each kind

/// Lines of one kind, the first of them in full.
class CappedList {
 public:
  void add(std::string line) {
    if (++count_ <= kShown) text_ += (count_ == 1 ? "" : ", ") + std::move(line);
  }
  bool empty() const noexcept { return count_ == 0; }
  std::string text() const {
    return str_format(
        "[{}{}]", text_,
        count_ > kShown ? str_format(", … and {} more", grouped(count_ - kShown)) : "");
  }

 private:
  std::string text_;
  std::size_t count_ = 0;
};

/// Bounded in depth: what is nested deeper than a state dict may be has no tensors to save.
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
    if (a.is_dict() && b.is_dict()) return compare_dicts(a.as_dict(), b.as_dict());
    if (a.is_sequence() && a.kind() == b.kind()) return compare_lists(a.items(), b.items());
    if (a == b) return;
    mismatched.add(
        str_format("({}, {}, {})", to_string(path_), to_string(a.kind()), to_string(b.kind())));
    note_lost(b);
  }

  CappedList only_first;
  CappedList only_second;
  CappedList mismatched;
  std::vector<std::string> lost;

 private:
  void note_lost(const Value& of_second) {
    if (holds_tensor(of_second)) lost.push_back(to_string(path_));
  }

  static PathElement element(const Value& key) {
    if (key.is_int()) return key.as_int();
    return key.is_str() ? key.as_str() : std::string(to_string(key.kind()));
  }

  template <typename Work>
  void below(PathElement element, Work&& work) {
    path_.push_back(std::move(element));
    if (path_.size() <= kMaxTreeDepth) work();
    path_.pop_back();
  }

  void compare_dicts(const Dict& a, const Dict& b) {
    for (const auto& [key, value] : a) {
      const Value* const other = b.find(key);
      below(element(key), [&, &mine = value] {
        other != nullptr ? compare(mine, *other) : only_first.add(to_string(path_));
      });
    }
    for (const auto& [key, value] : b) {
      if (a.find(key) == nullptr) below(element(key), [&, &mine = value] { add_second(mine); });
    }
  }

  void compare_lists(const ValueList& a, const ValueList& b) {
    for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      below(static_cast<std::int64_t>(i), [&] {
        if (i >= b.size())
          only_first.add(to_string(path_));
        else if (i >= a.size())
          add_second(b[i]);
        else
          compare(a[i], b[i]);
      });
    }
  }

  void add_second(const Value& value) {
    only_second.add(to_string(path_));
    note_lost(value);
  }

  KeyPath path_;
};

/// The maximum of a digest and of its complement over all ranks: the same on all if and only if all
/// digests are.
bool same_everywhere(const Sha256::Digest& digest, Communicator& comm) {
  std::vector<std::int64_t> values;
  for (std::size_t at = 0; at < digest.size(); at += sizeof(std::int64_t)) {
    const auto value = load_le<std::int64_t>(digest, at);
    values.push_back(value);
    values.push_back(~value);
  }
  const std::vector<std::int64_t> most = comm.all_reduce(values, ReduceOp::kMax);
  for (std::size_t i = 0; i < most.size(); i += 2) {
    if (most[i] != ~most[i + 1]) return false;
  }
  return true;
}

}  // namespace

CommonDifference compare_common(const Value& of_rank_0, const Value& mine, int rank) {
  CommonComparison comparison;
  comparison.compare(of_rank_0, mine);
  if (comparison.only_first.empty() && comparison.only_second.empty() &&
      comparison.mismatched.empty())
    return {};
  const std::string number = std::to_string(rank);
  return {str_format("Rank {} common state dict differs from rank 0 common state dict. Keys only "
                     "on rank 0: {}, Keys only on {}: {}, Mismatched keys: {}",
                     number, comparison.only_first.text(), number, comparison.only_second.text(),
                     comparison.mismatched.text()),
          std::move(comparison.lost)};
}

void compare_common_states(const Value& mine, Communicator& comm) {
  if (comm.size() == 1) return;
  Bytes bytes;
  Sha256::Digest digest{};
  agree(comm, "comparing the common state", [&] {
    bytes = save_torch_file(mine);
    Sha256 hash;
    hash.update(bytes);
    digest = hash.finish();
  });
  if (same_everywhere(digest, comm)) return;
  const Bytes of_rank_0 = comm.broadcast(bytes, 0);
  agree(comm, "comparing the common state", [&] {
    if (comm.rank() == 0) return;
    const CommonDifference difference = compare_common(
        load_torch_bytes(of_rank_0, "the common state of rank 0"), mine, comm.rank());
    if (!difference.lost.empty()) {
      throw CheckpointError(
          ErrorCode::kMismatch,
          str_format(
              "the common state is saved from rank 0 alone, and these tensors of rank {} are not "
              "the same there: {}; describe what ranks hold parts of with ShardedTensor",
              comm.rank(), quoted_list(difference.lost, kShown)),
          {.rank = comm.rank()});
    }
    if (!difference.text.empty()) log_warning(difference.text + "; rank 0's is saved");
  });
}

}  // namespace dckpt
