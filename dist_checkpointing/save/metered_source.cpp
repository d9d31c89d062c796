#include "dist_checkpointing/save/metered_source.h"

namespace dckpt {

Bytes MeteredSource::object(const WriteItem& item) {
  const PhaseClock::Scope copying(&phases_, Phase::kCopy);
  Bytes bytes = source_.object(item);
  heartbeat_.add(bytes.size());
  return bytes;
}

void MeteredSource::tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) {
  metered(sink, [&](const auto& counted) { source_.tensor(item, counted); });
}

void MeteredSource::part(const WriteItem& item, std::uint64_t begin,
                         const std::function<void(ByteView)>& sink) {
  metered(sink, [&](const auto& counted) { source_.part(item, begin, counted); });
}

std::unique_ptr<ItemSource> MeteredSource::in_order(const SavePlan& plan,
                                                    std::span<const std::size_t> items) {
  auto source = source_.in_order(plan, items);
  if (source == nullptr) return nullptr;
  return std::unique_ptr<ItemSource>(new MeteredSource(std::move(source), heartbeat_, phases_));
}

void MeteredSource::metered(
    const std::function<void(ByteView)>& sink,
    const std::function<void(const std::function<void(ByteView)>&)>& deliver) {
  const PhaseClock::Scope copying(&phases_, Phase::kCopy);
  heartbeat_.check();
  deliver([&](ByteView part) {
    sink(part);
    heartbeat_.add(part.size());
  });
}

}  // namespace dckpt
