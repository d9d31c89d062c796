#include "tests/strategies/comm/nccl/fake_machine.h"

#include <algorithm>

#include "tests/strategies/comm/nccl/fake_nccl.h"

namespace dckpt::fake_nccl {

Machine machine;
thread_local int this_rank = -1;
thread_local int this_device = 0;

void note_misuse(const std::string& text) {
  const std::scoped_lock lock(machine.mutex);
  if (machine.misuse.empty()) machine.misuse = text;
}

bool fails(const char* function) {
  const std::scoped_lock lock(machine.mutex);
  Fault& fault = machine.fault;
  if (fault.rank != this_rank || fault.function != function || --fault.calls_left != 0)
    return false;
  return fault.fired = true;
}

int place_of(const void* memory, std::size_t size) {
  const std::scoped_lock lock(machine.mutex);
  const auto* bytes = static_cast<const std::byte*>(memory);
  auto found = machine.memory.upper_bound(bytes);
  if (found == machine.memory.begin()) return -2;
  --found;
  return bytes + size <= found->first + found->second.size ? found->second.device : -2;
}

void count_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const std::scoped_lock lock(machine.mutex);
  for (const void* const side : {to, from}) {
    auto found = machine.memory.upper_bound(static_cast<const std::byte*>(side));
    if (found == machine.memory.begin() || (--found)->second.device < 0) continue;
    Copied& copied = machine.copied[found->first];
    (kind == cudaMemcpyHostToDevice   ? copied.from_host
     : kind == cudaMemcpyDeviceToHost ? copied.to_host
                                      : copied.on_device) += bytes;
  }
}

Copied copied(const void* allocation) {
  const std::scoped_lock lock(machine.mutex);
  if (allocation != nullptr) return machine.copied[static_cast<const std::byte*>(allocation)];
  Copied all;
  for (const auto& [memory, copied] : machine.copied) {
    all.from_host += copied.from_host;
    all.to_host += copied.to_host;
    all.on_device += copied.on_device;
  }
  return all;
}

bool is_idle(int device) {
  return std::ranges::none_of(machine.streams, [&](cudaStream_t stream) {
    return stream->device == device && (stream->busy || !stream->work.empty());
  });
}

bool idle(int device) {
  const std::scoped_lock lock(machine.mutex);
  return is_idle(device);
}

void reset(int devices) {
  const std::scoped_lock lock(machine.mutex);
  machine.devices = devices;
  machine.contexts.clear();
  machine.fault = {};
  machine.broken.clear();
  machine.copied.clear();
  machine.misuse.clear();
  machine.takes_ordinary_memory = false;
}

void take_ordinary_memory() {
  const std::scoped_lock lock(machine.mutex);
  machine.takes_ordinary_memory = true;
}

void bind_thread(int rank) {
  this_rank = rank;
}

void fail(int rank, const std::string& function, int call) {
  const std::scoped_lock lock(machine.mutex);
  machine.fault = {function, rank, call};
}

bool has_failed() {
  const std::scoped_lock lock(machine.mutex);
  return machine.fault.fired;
}

void break_link(int rank, const std::string& text) {
  const std::scoped_lock lock(machine.mutex);
  machine.broken[rank] = text;
}

std::string left_over() {
  const std::scoped_lock lock(machine.mutex);
  std::string text;
  const auto add = [&](std::size_t count, const char* what) {
    text += count == 0 ? "" : std::to_string(count) + " " + what + "; ";
  };
  add(machine.memory.size(), "pieces of memory");
  add(machine.streams.size(), "streams");
  add(static_cast<std::size_t>(machine.events), "events");
  add(static_cast<std::size_t>(machine.comms), "communicators");
  return text;
}

std::string misuse() {
  const std::scoped_lock lock(machine.mutex);
  return machine.misuse;
}

std::set<int> contexts() {
  const std::scoped_lock lock(machine.mutex);
  return machine.contexts;
}

}  // namespace dckpt::fake_nccl
