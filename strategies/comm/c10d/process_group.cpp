#include "strategies/comm/c10d/process_group.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "strategies/comm/point_to_point.h"

namespace dckpt {
namespace {

// Above the small numbers that trainers give their own messages.
constexpr int kFirstTag = 0x0dc00000;

// Backends count the bytes of a message in 32 bits; longer buffers travel as several messages.
constexpr std::size_t kLongestMessage = std::size_t{8} << 20;

std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return printable(torch_error != nullptr ? torch_error->what_without_backtrace() : error.what());
}

/// Tagged messages of a backend; each group of ranks has a tag of its own.
class BackendTransport final : public Transport {
 public:
  /// `next_tag` is shared by all groups over one backend.
  BackendTransport(c10::intrusive_ptr<c10d::Backend> backend, int tag, std::shared_ptr<std::atomic<int>> next_tag)
      : backend_(std::move(backend)), tag_(tag), next_tag_(std::move(next_tag)) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming, const Deadline& deadline) override {
    std::vector<Message> messages;
    for (const Outgoing& one : outgoing) {
      post(messages, one.to, one.bytes, deadline, [&](std::vector<at::Tensor>& tensors) { return backend_->send(tensors, one.to, tag_); });
    }
    const std::size_t sent = messages.size();
    for (const Incoming& one : incoming) {
      post(messages, one.from, one.bytes, deadline, [&](std::vector<at::Tensor>& tensors) { return backend_->recv(tensors, one.from, tag_); });
    }
    std::rotate(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(sent), messages.end());  // who does not send is named before who does not receive
    for (const Message& message : messages) guarded(message.peer, deadline, [&] { wait(*message.work, deadline); });
  }

  std::shared_ptr<Transport> part(std::span<const int>, Communicator& group) override {
    const std::int64_t mine = next_tag_->load();
    const auto tag = static_cast<int>(group.all_reduce({&mine, 1}, ReduceOp::kMax).front());  // used by no group of these ranks
    *next_tag_ = tag + 1;
    return std::make_shared<BackendTransport>(backend_, tag, next_tag_);
  }

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;

  struct Message {
    int peer;
    Work work;
  };

  static void post(std::vector<Message>& messages, int peer, ByteView bytes, const Deadline& deadline, const std::function<Work(std::vector<at::Tensor>&)>& start) {
    for (std::size_t at = 0; at < bytes.size(); at += kLongestMessage) {
      guarded(peer, deadline, [&] {
        std::vector<at::Tensor> tensors = {tensor_over(bytes.subspan(at, std::min(kLongestMessage, bytes.size() - at)))};
        messages.push_back({peer, start(tensors)});
      });
    }
  }

  static void wait(c10d::Work& work, const Deadline& deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.at - std::chrono::steady_clock::now());
    // Zero would mean for ever.
    if (!work.wait(std::max(left, std::chrono::milliseconds(1)))) throw std::runtime_error("the operation was aborted");
  }

  /// What the backend throws becomes an error that says for whom this rank waited.
  template <typename Body>
  static void guarded(int peer, const Deadline& deadline, Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      throw CheckpointError(ErrorCode::kIo, (deadline.passed() ? "waited " + std::to_string(deadline.timeout.count()) + " ms for rank " : "lost the connection to rank ") +
                                                std::to_string(peer) + ": " + text_of(error));
    }
  }

  // A view; the backend takes no pointers to const, and only reads what it sends.
  static at::Tensor tensor_over(ByteView bytes) { return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte); }

  c10::intrusive_ptr<c10d::Backend> backend_;
  int tag_;
  std::shared_ptr<std::atomic<int>> next_tag_;
};

}  // namespace

std::unique_ptr<Communicator> c10d_communicator(const c10::intrusive_ptr<c10d::Backend>& backend, std::chrono::milliseconds timeout) {
  if (!backend) throw CheckpointError(ErrorCode::kInvalidArgument, "a communicator over c10d needs a process group; the one that was passed is null");
  return point_to_point(std::make_shared<BackendTransport>(backend, kFirstTag, std::make_shared<std::atomic<int>>(kFirstTag + 1)), backend->getRank(), backend->getSize(), timeout);
}

}  // namespace dckpt
