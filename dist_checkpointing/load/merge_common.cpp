#include "dist_checkpointing/load/merge_common.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/state/destination.h"
#include "mapping/state/flatten.h"
#include "mapping/state/overlaps.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tree.h"

namespace dckpt {
namespace {

bool stays(const Value& leaf) {
  return leaf.is_sharded() || leaf.is(Value::Kind::kLocalNonpersistentObject);
}

/// The kinds of leaves that a tree has: those that stay unchanged, and others.
struct TreeLeaves {
  bool staying = false;
  bool plain = false;
};

TreeLeaves leaves_of(const Value& tree) {
  TreeLeaves found;
  visit_leaves(tree,
               [&](const Value& leaf) { (stays(leaf) ? found.staying : found.plain) = true; });
  return found;
}

PathElement element_of(const Value& key) {
  if (key.is_int()) return key.as_int();
  return key.is_str() ? key.as_str() : std::string(to_string(key.kind()));
}

std::string describe(const Value& stored) {
  if (!stored.is_tensor()) return std::string(to_string(stored.kind()));
  const Tensor& tensor = stored.as_tensor();
  return str_format("{} tensor of shape {}", to_string(tensor.dtype()), to_string(tensor.shape()));
}

/// A tensor that a load has filled.
struct Filled {
  std::string name;
  Tensor to;
  std::optional<Tensor> from{};  ///< value stored for a plain tensor; none for a ShardedTensor
};

class CommonMerge {
 public:
  CommonMerge(MergedCommon& merged, Cast cast) : merged_(merged), cast_(cast) {}

  /// Refuses tensors that share memory unless their values are the same.
  void require_apart() {
    if (filled_.empty()) return;
    visit_leaves(merged_.state, [&](const Value& leaf) {
      if (!leaf.is(Value::Kind::kShardedTensor)) return;
      const ShardedTensor& tensor = leaf.as_sharded_tensor();
      if (tensor.data && tensor.data->has_data()) filled_.push_back({tensor.key, *tensor.data});
    });
    std::vector<Tensor> memory;
    for (const Filled& filled : filled_) memory.push_back(filled.to);
    for_each_overlap(memory, [&](std::size_t a, std::size_t b) {
      if (filled_[a].from || filled_[b].from) require_same(filled_[a], filled_[b]);
    });
  }

  void merge(Value& into, const Value& stored) {
    if (into.is_dict() && stored.is_dict()) return merge_dicts(into, stored.as_dict());
    if (!leaves_of(into).staying) {
      replace(into, stored);
    } else if (into.is_list() && stored.is_list()) {
      merge_lists(into.mutable_items(), stored.items());
    } else {
      refuse(
          str_format("the checkpoint's common state has a {} here, the state a {}; was it saved "
                     "with plain tensors in place of ShardedTensors?",
                     to_string(stored.kind()),
                     stays(into) ? "sharded or local leaf" : "container of sharded leaves"));
    }
  }

 private:
  /// Merges dicts. A shared dict is copied only if something in it changes.
  void merge_dicts(Value& into, const Dict& stored) {
    for (std::size_t i = 0; i < into.size(); ++i) {
      const auto& entry = into.as_dict().items()[i];
      const Value* const found = stored.find(entry.first);
      if (found == nullptr && stays(entry.second)) continue;
      below(element_of(entry.first), [&] {
        found != nullptr ? merge(into.mutable_dict().value_at(i), *found) : keep(entry.second);
      });
    }
    for (const auto& [key, value] : stored) {
      if (into.find(key) == nullptr) into.mutable_dict().set(key, value);
    }
  }

  /// Replaces a plain value by the stored one. Tensors keep their memory if they fit.
  void replace(Value& into, const Value& stored) {
    if (into.is_list() && stored.is_list() && into.size() == stored.size()) {
      ValueList& items = into.mutable_items();
      for (std::size_t i = 0; i < items.size(); ++i)
        below(static_cast<std::int64_t>(i), [&] { replace(items[i], stored.items()[i]); });
    } else if (into.is_dict() && stored.is_dict()) {
      Value result = stored;
      for (const auto& entry : into.as_dict()) {
        const Value* const found = stored.find(entry.first);
        below(element_of(entry.first), [&] {
          if (found == nullptr) return name_tensors(entry.second, "nothing");
          Value item = entry.second;
          replace(item, *found);
          result.mutable_dict().set(entry.first, std::move(item));
        });
      }
      into = std::move(result);
    } else if (into.is_tensor() && stored.is_tensor() &&
               can_hold(into.as_tensor(), stored.as_tensor())) {
      fill(into.as_tensor(), stored.as_tensor());
    } else {
      name_tensors(into, describe(stored));
      into = stored;
    }
  }

  /// Returns whether the memory of a plain tensor can take the stored one.
  bool can_hold(const Tensor& into, const Tensor& stored) const {
    const bool same = into.dtype() == stored.dtype();
    return into.has_data() && into.device().kind == Device::Kind::kCpu && stored.has_data() &&
           (same || (cast_ == Cast::kAllow && can_cast(stored.dtype(), into.dtype()))) &&
           equal(into.shape(), stored.shape());
  }

  void fill(const Tensor& to, const Tensor& from) {
    if (const std::string reason = unfit_to_load_into(to); !reason.empty())
      refuse("the state's tensor " + reason);
    if (to.dtype() != from.dtype())
      merged_.casts.push_back({dotted_name(path_), from.dtype(), to.dtype()});
    if (to.numel() == 0) return;
    copy(to, from);
    filled_.push_back({dotted_name(path_), to, from});
  }

  static void copy(const Tensor& to, const Tensor& from) {
    if (to.dtype() == from.dtype()) {
      strided_copy(to.shape(), item_size(to.dtype()), from.data(), {0, from.strides()},
                   to.mutable_data(), {0, to.strides()});
    } else {
      strided_cast(to.shape(), from.dtype(), from.data(), {0, from.strides()}, to.dtype(),
                   to.mutable_data(), {0, to.strides()});
    }
  }

  /// Returns whether a plain tensor has the value stored for it.
  static bool is_filled(const Filled& filled) {
    const Tensor stored = Tensor::empty(filled.to.dtype(), filled.to.shape());
    copy(stored, *filled.from);
    return equal(stored, filled.to.contiguous());
  }

  static void require_same(const Filled& a, const Filled& b) {
    const bool sharded = !a.from || !b.from;
    if (!sharded && is_filled(a) && is_filled(b)) return;
    throw_error(ErrorCode::kMismatch,
                "{} and {} are loaded into one memory, but {}; give each a tensor of its own",
                quote(a.name), quote(b.name),
                sharded ? "only one of them is sharded" : "other values are stored for each");
  }

  /// Records the tensors of `tree`, which `stored` replaces: their memory is not filled.
  void name_tensors(const Value& tree, const std::string& stored) {
    visit_leaves(tree, [&](const KeyPath& path, const Value& leaf) {
      if (!leaf.is_tensor() || !leaf.as_tensor().has_data()) return;
      KeyPath whole = path_;
      whole.insert(whole.end(), path.begin(), path.end());
      merged_.replaced.push_back({dotted_name(whole), stored});
    });
  }

  /// Merges lists. Items with only sharded or local leaves are not in the stored list.
  void merge_lists(ValueList& into, const ValueList& stored) {
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < into.size(); ++i) {
      const TreeLeaves leaves = leaves_of(into[i]);
      if (leaves.plain || !leaves.staying) others.push_back(i);
    }
    if (others.size() != stored.size()) {
      refuse(str_format("the list has {} not sharded, but {} stored",
                        counted(others.size(), "item that is", "items that are"),
                        counted(stored.size(), "is", "are")));
    }
    for (std::size_t i = 0; i < others.size(); ++i) {
      below(static_cast<std::int64_t>(others[i]), [&] { merge(into[others[i]], stored[i]); });
    }
  }

  /// Records the plain values in `tree` as kept.
  void keep(const Value& tree) {
    visit_leaves(tree, [&](const KeyPath& path, const Value& leaf) {
      if (stays(leaf)) return;
      merged_.kept.push_back(path_);
      merged_.kept.back().insert(merged_.kept.back().end(), path.begin(), path.end());
    });
  }

  template <typename Work>
  void below(PathElement element, Work&& work) {
    path_.push_back(std::move(element));
    if (path_.size() > kMaxTreeDepth) refuse("nested too deep");
    work();
    path_.pop_back();
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw_error(ErrorCode::kMismatch, "cannot merge the common state at {}: {}",
                quote(dotted_name(path_)), why);
  }

  MergedCommon& merged_;
  Cast cast_;
  KeyPath path_;
  std::vector<Filled> filled_;
};

}  // namespace

MergedCommon merge_common(Value state, const Value& common, Cast cast) {
  MergedCommon merged{std::move(state), {}, {}, {}};
  if (merged.state.is_none()) merged.state = Value::dict();
  CommonMerge merge(merged, cast);
  merge.merge(merged.state, common.is_none() ? Value::dict() : common);
  merge.require_apart();
  return merged;
}

}  // namespace dckpt
