#include "strategies/comm/c10d/process_group.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "strategies/comm/c10d/backend_call.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/shared_memory.h"

namespace dckpt {
namespace {

// The first tag, above the small numbers that trainers give their own messages.
constexpr int kFirstTag = 0x0dc00000;

// Backends count the bytes of a message in 32 bits, so longer buffers are sent as several messages.
constexpr std::size_t kLongestMessage = std::size_t{8} << 20;

/// Sends tagged messages over a backend; each group of ranks has a tag of its own.
class BackendTransport final : public Transport {
 public:
  /// All groups over one backend share `next_tag`.
  BackendTransport(c10::intrusive_ptr<c10d::Backend> backend, int tag,
                   std::shared_ptr<std::atomic<int>> next_tag)
      : backend_(std::move(backend)), tag_(tag), next_tag_(std::move(next_tag)) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    std::vector<Message> messages;
    for (const Outgoing& one : outgoing) {
      post(messages, one.to, one.bytes, deadline,
           [&](std::vector<at::Tensor>& tensors) { return backend_->send(tensors, one.to, tag_); });
    }
    const std::size_t sent = messages.size();
    for (const Incoming& one : incoming) {
      post(messages, one.from, one.bytes, deadline, [&](std::vector<at::Tensor>& tensors) {
        return backend_->recv(tensors, one.from, tag_);
      });
    }
    // A rank that does not send is named before one that does not receive.
    std::rotate(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(sent),
                messages.end());
    for (const Message& message : messages)
      backend_call({&message.peer, 1}, deadline, [&] { wait(*message.work, deadline); });
  }

  std::shared_ptr<Transport> part(std::span<const int>, Communicator& group) override {
    const std::int64_t mine = next_tag_->load();
    const auto tag = static_cast<int>(
        group.all_reduce({&mine, 1}, ReduceOp::kMax).front());  // used by no group of these ranks
    *next_tag_ = tag + 1;
    return std::make_shared<BackendTransport>(backend_, tag, next_tag_);
  }

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;

  struct Message {
    int peer;
    Work work;
  };

  static void post(std::vector<Message>& messages, int peer, ByteView bytes,
                   const Deadline& deadline,
                   const std::function<Work(std::vector<at::Tensor>&)>& start) {
    for (std::size_t at = 0; at < bytes.size(); at += kLongestMessage) {
      backend_call({&peer, 1}, deadline, [&] {
        std::vector<at::Tensor> tensors = {
            tensor_over(bytes.subspan(at, std::min(kLongestMessage, bytes.size() - at)))};
        messages.push_back({peer, start(tensors)});
      });
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  int tag_;
  std::shared_ptr<std::atomic<int>> next_tag_;
};

}  // namespace

std::unique_ptr<Communicator> c10d_communicator(const c10::intrusive_ptr<c10d::Backend>& backend,
                                                std::chrono::milliseconds timeout) {
  check_backend(backend);
  survive_closed_connections();
  auto network = std::make_shared<BackendTransport>(
      backend, kFirstTag, std::make_shared<std::atomic<int>>(kFirstTag + 1));
  return point_to_point(with_shared_memory(std::move(network), backend->getRank()),
                        backend->getRank(), backend->getSize(), timeout);
}

}  // namespace dckpt
