#include "dist_checkpointing/save/metered_source.h"

namespace dckpt {

Bytes MeteredSource::object(const WriteItem& item) {
  const PhaseClock::Scope copying(&phases_, Phase::kCopy);
  Bytes bytes = source_.object(item);
  heartbeat_.add(bytes.size());
  return bytes;
}

void MeteredSource::tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) {
  const PhaseClock::Scope copying(&phases_, Phase::kCopy);
  heartbeat_.check();
  source_.tensor(item, [&](ByteView part) {
    sink(part);
    heartbeat_.add(part.size());
  });
}

}  // namespace dckpt
