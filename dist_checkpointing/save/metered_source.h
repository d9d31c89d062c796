#pragma once

#include <memory>
#include <span>
#include <utility>

#include "mapping/base/phase_clock.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Passes items on, reports the bytes that the writer has taken to `heartbeat` and their time to
/// `phases`, and throws once the ranks have agreed to stop.
class MeteredSource final : public ItemSource {
 public:
  MeteredSource(ItemSource& source, Heartbeat& heartbeat, PhaseClock& phases)
      : source_(source), heartbeat_(heartbeat), phases_(phases) {}

  Bytes object(const WriteItem& item) override;
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;
  bool has_parts(const WriteItem& item) const override { return source_.has_parts(item); }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override;
  std::unique_ptr<ItemSource> in_order(const SavePlan& plan,
                                       std::span<const std::size_t> items) override;

 private:
  MeteredSource(std::unique_ptr<ItemSource> source, Heartbeat& heartbeat, PhaseClock& phases)
      : owned_(std::move(source)), source_(*owned_), heartbeat_(heartbeat), phases_(phases) {}

  /// Passes the data that `deliver` delivers on to `sink`, measured.
  void metered(const std::function<void(ByteView)>& sink,
               const std::function<void(const std::function<void(ByteView)>&)>& deliver);

  const std::unique_ptr<ItemSource> owned_{};  ///< null if the caller owns the source
  ItemSource& source_;
  Heartbeat& heartbeat_;
  PhaseClock& phases_;
};

}  // namespace dckpt
