#include "strategies/comm/agree.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/ranks_text.h"

namespace dckpt {
namespace {

// Longest text of one field that a rank sends.
constexpr std::size_t kMaxTextBytes = 4096;
// Ranks quoted in the common message.
constexpr std::size_t kMaxRanksQuoted = 3;

// An error between ranks: code, then message, key, file (length + 1 and the text; 0 if there is
// none), offset + 1, rank + 1 (0 if unknown).

void append_text(Bytes& out, const std::optional<std::string>& text) {
  const ByteView bytes =
      text ? as_bytes(std::string_view(*text).substr(0, kMaxTextBytes)) : ByteView{};
  append_le<std::uint32_t>(out, text ? static_cast<std::uint32_t>(bytes.size()) + 1 : 0);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

Bytes encode(const CheckpointError& error) {
  Bytes out;
  append_le(out, static_cast<std::uint32_t>(error.code()));
  append_text(out, error.message());
  append_text(out, error.context().key);
  append_text(out, error.context().file);
  append_le<std::uint64_t>(out, error.context().offset ? *error.context().offset + 1 : 0);
  append_le<std::uint64_t>(
      out, error.context().rank ? static_cast<std::uint64_t>(*error.context().rank) + 1 : 0);
  return out;
}

class Decoder {
 public:
  explicit Decoder(ByteView bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    return load_le<T>(take(sizeof(T)), 0);
  }

  std::optional<std::string> text() {
    const auto length = number<std::uint32_t>();
    if (length == 0) return std::nullopt;
    return std::string(as_text(take(length - 1)));
  }

 private:
  ByteView take(std::size_t length) {
    if (length > rest_.size())
      throw CheckpointError(
          ErrorCode::kCorrupt,
          "another rank sent a broken error report: do all ranks run the same build?");
    const ByteView taken = rest_.first(length);
    rest_ = rest_.subspan(length);
    return taken;
  }

  ByteView rest_;
};

CheckpointError decode(ByteView bytes, std::optional<int> sender) {
  Decoder decoder(bytes);
  // A code that this build does not know is (internal), the last one that it knows.
  const auto code =
      std::min(decoder.number<std::uint32_t>(), static_cast<std::uint32_t>(ErrorCode::kInternal));
  const std::string message = decoder.text().value_or("");
  ErrorContext context;
  context.key = decoder.text();
  context.file = decoder.text();
  if (const auto offset = decoder.number<std::uint64_t>()) context.offset = offset - 1;
  const auto rank = decoder.number<std::uint64_t>();
  context.rank = rank != 0 ? std::optional(static_cast<int>(rank - 1)) : sender;
  return {static_cast<ErrorCode>(code), message, context};
}

CheckpointError common_error(const std::string& what, const std::vector<Bytes>& reports,
                             std::exception_ptr cause) {
  std::optional<CheckpointError> first;
  std::vector<std::size_t> failed;
  std::string quotes;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].empty()) continue;
    const CheckpointError error = decode(reports[rank], static_cast<int>(rank));
    const std::string about = error.context().rank == static_cast<int>(rank)
                                  ? ""
                                  : ", about rank " + std::to_string(*error.context().rank);
    if (failed.size() < kMaxRanksQuoted && (!first || error.message() != first->message()))
      quotes +=
          (first ? "; rank " : "rank ") + std::to_string(rank) + about + ": " + error.message();
    if (!first) first = error;
    failed.push_back(rank);
  }
  const std::string message = what + " failed on " + ranks_text(failed) + " of " +
                              std::to_string(reports.size()) + "; " + quotes;
  return {first->code(), message, first->context(), std::move(cause)};
}

}  // namespace

std::optional<CheckpointError> failure_of(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (...) {
    return current_error();
  }
}

void agree(Communicator& comm, const std::string& what, const std::function<void()>& work) {
  agree(comm, what, failure_of(work));
}

void agree(Communicator& comm, const std::string& what,
           const std::optional<CheckpointError>& failure) {
  if (comm.size() == 1) {
    if (failure) throw *failure;
    return;
  }
  // If no rank has failed, one number of each rank is all that travels (over a Transport: gathered
  // on rank 0 and broadcast); reports travel only after a failure.
  const std::array<std::int64_t, 1> failed = {failure ? 1 : 0};
  if (comm.all_reduce(failed, ReduceOp::kMax).front() == 0) return;
  throw common_error(what, comm.all_gather(failure ? encode(*failure) : Bytes{}),
                     failure ? failure->cause() : nullptr);
}

void decide(Communicator& comm, const std::function<void()>& work) {
  const std::optional<CheckpointError> failure = comm.rank() == 0 ? failure_of(work) : std::nullopt;
  const Bytes report = comm.broadcast(failure ? encode(*failure) : Bytes{}, 0);
  if (!report.empty()) throw decode(report, std::nullopt);
}

}  // namespace dckpt
