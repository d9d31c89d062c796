#include "strategies/comm/c10d/backend_call.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <string>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"

namespace dckpt {

void check_backend(const c10::intrusive_ptr<c10d::Backend>& backend) {
  if (!backend)
    throw_error(ErrorCode::kInvalidArgument,
                "a communicator over c10d needs a process group; the one that was passed is null");
}

void survive_closed_connections() {
  struct sigaction present {};
  if (sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL)
    (void)std::signal(SIGPIPE, SIG_IGN);
}

void backend_call(std::span<const int> peers, const Deadline& deadline,
                  const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const bool late = deadline.passed();
    ErrorContext context;
    if (!late && peers.size() == 1) context.rank = peers[0];
    throw CheckpointError(
        ErrorCode::kUnavailable,
        str_format("{}{}: {}",
                   late ? str_format("waited {} ms for ", deadline.timeout.count())
                        : "lost the connection to ",
                   ranks_text(peers),
                   printable(torch_error != nullptr ? torch_error->what_without_backtrace()
                                                    : error.what())),
        context, std::current_exception());
  }
}

void wait(c10d::Work& work, const Deadline& deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline.at - std::chrono::steady_clock::now());
  // A timeout of zero would mean no limit.
  if (!work.wait(std::max(left, std::chrono::milliseconds(1))))
    throw std::runtime_error("the operation was aborted");
}

at::Tensor tensor_over(ByteView bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()),
                       {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

}  // namespace dckpt
