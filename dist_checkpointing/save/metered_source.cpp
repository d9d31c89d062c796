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
