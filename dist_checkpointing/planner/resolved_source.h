#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dist_checkpointing/planner/save_planner.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// The item as it lies in the state, whose elements are of another dtype than what is stored.
WriteItem item_in_state(const WriteItem& item, DType dtype);

/// Passes items on as the planner resolves them. All that is referred to must outlive it.
class ResolvedSource final : public ItemSource {
 public:
  /// `dtypes`: of the tensors of the state, by WriteItem::source.
  ResolvedSource(ItemSource& source, const SavePlanner& planner, std::span<const DType> dtypes)
      : source_(source), planner_(planner), dtypes_(dtypes) {}

  Bytes object(const WriteItem& item) override { return source_.object(item); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;
  bool has_parts(const WriteItem& item) const override {
    return !planner_.resolves(item) && source_.has_parts(item);
  }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override {
    source_.part(item, begin, sink);
  }
  std::unique_ptr<ItemSource> in_order(const SavePlan& plan,
                                       std::span<const std::size_t> items) override;

 private:
  ItemSource& source_;
  const SavePlanner& planner_;
  const std::span<const DType> dtypes_;
};

}  // namespace dckpt
