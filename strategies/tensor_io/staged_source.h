#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "strategies/contract/save_strategy.h"
#include "strategies/tensor_io/state_copier.h"

namespace dckpt {

/// Feeds a background writer from copies of the state, which may change once stage() has returned.
///
/// The threads of stage() copy the items of the plan one after the other into the pool, each item
/// part by part; the writer frees each copy after writing it. If all of them fit into the pool,
/// copying comes first and the writer waits: the caller waits for one copy. Otherwise the writer
/// does not wait: it takes the parts that it reaches before they are copied straight from the
/// state, which needs no memory. Neither side ever waits for the other to make room, however small
/// the pool is, and stage() takes no longer than copying everything or writing what does not fit.
///
/// Elements in device memory are copied straight to page-locked memory of the pool, many items at a
/// time.
///
/// `plan` and `pool` must outlive the source. A pool serves one source at a time.
class StagedSource final : public ItemSource, public StateCopier {
 public:
  /// Counting in `bytes` starts at 0.
  StagedSource(const SavePlan& plan, std::vector<Tensor> tensors, std::vector<Bytes> objects,
               StagingPool& pool,
               std::shared_ptr<StagedBytes> bytes = std::make_shared<StagedBytes>());

  Bytes object(const WriteItem& item) override { return objects_[item.source]; }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;
  bool has_parts(const WriteItem&) const override { return true; }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override;

 private:
  void write_staged(const std::vector<Piece>& pieces, const std::function<void(ByteView)>& sink);
  void require_state(const WriteItem& item) const;
  void finish_direct(Part& part);

  bool writer_must_wait(const Part& part) const {
    return part.step == Step::kCopying || (copies_first_ && !failure_ && (!begun_ || copying_ > 0));
  }

  const std::vector<Bytes> objects_;
};

}  // namespace dckpt
