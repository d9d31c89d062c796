#include "mapping/state/producer_stream.h"

#include <atomic>

namespace dckpt {
namespace {

std::atomic<ProducerStream> current{nullptr};

}  // namespace

void set_producer_stream(ProducerStream ask) noexcept {
  current = ask;
}

ProducerStream producer_stream() noexcept {
  return current;
}

}  // namespace dckpt
