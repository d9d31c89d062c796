#include "dist_checkpointing/ranks/same_on_all_ranks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"
#include "mapping/base/wire.h"
#include "strategies/comm/phase_label.h"

namespace dckpt {
namespace {

constexpr std::size_t kMaxValuesShown = 4;
constexpr std::size_t kMaxValueBytes = 300;

/// Returns the halves of a hash, shifted so that they can be negated.
std::array<std::int64_t, 2> hashes_of(std::string_view text) {
  const Fingerprint hash = fingerprint_of(as_bytes(text));
  return {static_cast<std::int64_t>(hash.low >> 1U), static_cast<std::int64_t>(hash.high >> 1U)};
}

/// Returns the line of `text` in which it first differs from `other`.
std::string first_difference(const std::string& text, const std::string& other) {
  const std::vector<std::string> lines = split(text, '\n');
  const std::vector<std::string> others = split(other, '\n');
  const auto [line, ignored] =
      std::mismatch(lines.begin(), lines.end(), others.begin(), others.end());
  const std::string found = line == lines.end() ? "" : *line;
  return found.substr(std::min(found.find_first_not_of(' '), found.size()));
}

/// Returns "'100' on ranks 0, 2; '101' on rank 1".
std::string describe_values(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> groups;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto same = std::ranges::find(
        groups, texts[rank], [](const auto& group) -> const std::string& { return group.first; });
    if (same != groups.end()) {
      same->second.push_back(rank);
    } else {
      groups.push_back({texts[rank], {rank}});
    }
  }
  std::string message;
  for (std::size_t i = 0; i < std::min(groups.size(), kMaxValuesShown); ++i) {
    const std::string& other = groups[i == 0 ? 1 : 0].first;
    message += str_format("{}{} on {}", i == 0 ? "" : "; ",
                          quote(first_difference(groups[i].first, other), kMaxValueBytes),
                          ranks_text(groups[i].second));
  }
  return groups.size() > kMaxValuesShown
             ? str_format("{}; and {} more", message, groups.size() - kMaxValuesShown)
             : message;
}

/// Returns the error for contradictory messages between ranks.
CheckpointError garbled(const std::string& attempt) {
  return {
      ErrorCode::kCorrupt,
      str_format("cannot {}: messages between the ranks did not arrive as they were sent: check "
                 "the network or the Communicator, and that all ranks run the same build",
                 attempt)};
}

}  // namespace

void require_same(Communicator& comm, const std::string& attempt,
                  std::span<const SharedArgument> arguments) {
  const PhaseLabel label("comparing the arguments of all ranks (" + attempt + ")");
  std::vector<std::int64_t> bounds;  // per argument, the least hashes and the negated greatest
  for (const SharedArgument& argument : arguments) {
    const auto [low, high] = hashes_of(argument.text);
    bounds.insert(bounds.end(), {low, high, -low, -high});
  }
  const std::size_t count = bounds.size();
  bounds = comm.all_reduce(bounds, ReduceOp::kMin);
  if (bounds.size() != count) throw garbled(attempt);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::int64_t* const bound = &bounds[4 * i];
    if (bound[0] == -bound[2] && bound[1] == -bound[3]) continue;
    const std::vector<Bytes> texts = comm.all_gather(as_bytes(arguments[i].text));
    std::vector<std::string> values;
    for (const Bytes& text : texts) values.emplace_back(as_text(text));
    if (std::ranges::adjacent_find(values, std::not_equal_to()) == values.end())
      throw garbled(attempt);
    throw_error(ErrorCode::kInvalidArgument, "cannot {}: the ranks were given different {}: {}",
                attempt, arguments[i].what, describe_values(values));
  }
}

bool is_same_on_all_ranks(const Fingerprint& fingerprint, Communicator& comm) {
  const auto low = static_cast<std::int64_t>(fingerprint.low);
  const auto high = static_cast<std::int64_t>(fingerprint.high);
  const std::array<std::int64_t, 4> mine{low, ~low, high, ~high};
  const std::vector<std::int64_t> most = comm.all_reduce(mine, ReduceOp::kMax);
  return most[0] == ~most[1] && most[2] == ~most[3];
}

}  // namespace dckpt
