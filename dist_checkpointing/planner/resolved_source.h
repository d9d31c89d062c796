#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/planner/save_planner.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Returns the item as it is in the state, whose elements have another dtype than the stored ones.
WriteItem item_in_state(const WriteItem& item, DType dtype);

/// Passes items on as the planner resolves them. The arguments must outlive it.
class ResolvedSource final : public ItemSource {
 public:
  /// `dtypes` are those of the state's tensors, by WriteItem::source; `who` names the planner in
  /// errors.
  ResolvedSource(ItemSource& source, const SavePlanner& planner, std::span<const DType> dtypes,
                 std::string who)
      : source_(source), planner_(planner), dtypes_(dtypes), who_(std::move(who)) {}

  Bytes object(const WriteItem& item) override { return source_.object(item); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;
  bool has_parts(const WriteItem& item) const override {
    return !resolves(item) && source_.has_parts(item);
  }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override {
    source_.part(item, begin, sink);
  }
  std::unique_ptr<ItemSource> in_order(const SavePlan& plan,
                                       std::span<const std::size_t> items) override;

 private:
  bool resolves(const WriteItem& item) const;

  ItemSource& source_;
  const SavePlanner& planner_;
  const std::span<const DType> dtypes_;
  const std::string who_;
};

}  // namespace dckpt
