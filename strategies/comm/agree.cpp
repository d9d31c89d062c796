#include "strategies/comm/agree.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/error_wire.h"
#include "mapping/base/ranks_text.h"
#include "mapping/base/wire.h"
#include "strategies/comm/phase_label.h"

namespace dckpt {

using std::string_view_literals::operator""sv;

namespace {

// The longest text of one field that a rank sends.
constexpr std::size_t kMaxTextBytes = 4096;
// The number of ranks quoted in the common message.
constexpr std::size_t kMaxRanksQuoted = 3;

Bytes encode(const CheckpointError& error) {
  Bytes bytes;
  WireWriter writer(bytes);
  write_to(writer, error, kMaxTextBytes);
  return bytes;
}

CheckpointError decode(ByteView bytes, std::optional<int> sender) {
  WireReader reader(bytes, "the error of another rank (do all ranks run the same build?)");
  const CheckpointError error = read_error(reader);
  reader.finish();
  return error.with({.rank = sender});
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
      quotes += str_format("{}{}{}: {}", first ? "; rank " : "rank ", rank, about,
                           PhaseLabel::removed(what, error.message()));
    if (!first) first = error;
    failed.push_back(rank);
  }
  if (!first) throw_error(ErrorCode::kCorrupt, what + " failed on a rank that does not say why");
  const std::string message =
      str_format("{} failed on {} of {}; {}", what, ranks_text(failed), reports.size(), quotes);
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
  const PhaseLabel phase(what);
  // If no rank has failed, ranks exchange only one number each (over a Transport: gathered on rank
  // 0 and broadcast); reports follow only after a failure.
  const std::array<std::int64_t, 1> failed = {failure ? 1 : 0};
  if (comm.all_reduce(failed, ReduceOp::kMax).front() == 0) return;
  throw common_error(what, comm.all_gather(failure ? encode(*failure) : Bytes{}),
                     failure ? failure->cause() : nullptr);
}

Bytes agree(Communicator& comm, const std::string& what,
            const std::optional<CheckpointError>& failure, ByteView mine,
            const JoinMessages& join) {
  constexpr auto kFailed = static_cast<char>(1);
  constexpr auto kSucceeded = static_cast<char>(0);
  if (failure && comm.size() == 1) throw *failure;
  const PhaseLabel phase(what);
  std::optional<CheckpointError> error = failure;
  std::string message(1, failure ? kFailed : kSucceeded);
  if (!failure) message += as_text(mine);
  std::vector<Bytes> told = comm.gather(as_bytes(message), 0);
  std::string answer(1, kSucceeded);
  if (comm.rank() == 0) {
    const auto failed = [](const Bytes& one) { return as_text(one).substr(0, 1) != "\0"sv; };
    if (std::ranges::any_of(told, failed)) {
      answer[0] = kFailed;
    } else {
      for (Bytes& one : told) one.erase(one.begin());
      error = failure_of([&] { answer += as_text(join(told)); });
      if (error) answer[0] = kFailed;
    }
  }
  Bytes joined = comm.broadcast(as_bytes(answer), 0);
  if (as_text(joined).substr(0, 1) != "\0"sv)
    throw common_error(what, comm.all_gather(error ? encode(*error) : Bytes{}),
                       error ? error->cause() : nullptr);
  joined.erase(joined.begin());
  return joined;
}

void decide(Communicator& comm, const std::function<void()>& work) {
  const std::optional<CheckpointError> failure = comm.rank() == 0 ? failure_of(work) : std::nullopt;
  const Bytes report = comm.broadcast(failure ? encode(*failure) : Bytes{}, 0);
  if (!report.empty()) throw decode(report, std::nullopt);
}

}  // namespace dckpt
