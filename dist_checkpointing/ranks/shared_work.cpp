#include "dist_checkpointing/ranks/shared_work.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <queue>

#include "dist_checkpointing/ranks/same_on_all_ranks.h"
#include "mapping/base/error.h"
#include "strategies/comm/agree.h"

namespace dckpt {

SharedWork::SharedWork(Communicator& comm, std::string what, int threads, Progress progress)
    : comm_(comm), what_(std::move(what)), threads_(threads), progress_(std::move(progress)) {
  if (comm_.size() == 1) return;
  Heartbeat::Options options;
  if (progress_)
    options.progress = [this](std::uint64_t done, std::uint64_t total) {
      if (total > 0) progress_(done, total);  // 0 before the units are known
    };
  heartbeat_.emplace(comm_, std::move(options));
}

void SharedWork::on_all_ranks(const std::function<void()>& step) {
  if (!heartbeat_) return step();
  std::optional<CheckpointError> failure;
  heartbeat_->agree(what_, [&] { failure = failure_of(step); });
  decide(comm_, [&] {
    if (failure) throw CheckpointError(*failure);
  });
  agree(comm_, what_, failure);
}

std::vector<std::vector<std::size_t>> SharedWork::divide(
    std::span<const std::uint64_t> sizes) const {
  constexpr std::uint64_t kCost = 4096;  // of a unit, however few bytes it has
  std::vector<std::vector<std::size_t>> shares(static_cast<std::size_t>(comm_.size()));
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t unit) { return sizes[unit]; });
  using Load = std::pair<std::uint64_t, std::size_t>;  // bytes and rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) loads.emplace(0, rank);
  for (const std::size_t unit : order) {
    const auto [bytes, rank] = loads.top();
    loads.pop();
    shares[rank].push_back(unit);
    loads.emplace(bytes + sizes[unit] + kCost, rank);
  }
  for (std::vector<std::size_t>& share : shares) std::ranges::sort(share);
  return shares;
}

void SharedWork::run(std::span<const std::vector<std::size_t>> shares,
                     std::span<const std::uint64_t> sizes,
                     const std::function<void(std::size_t)>& work) {
  const std::vector<std::size_t>& mine = shares[static_cast<std::size_t>(comm_.rank())];
  if (expected_ == 0) expect(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}));
  const auto do_mine = [&] {
    parallel_for(mine.size(), threads_, [&](std::size_t i) { work(mine[i]); });
  };
  if (!heartbeat_) return do_mine();
  require_same("parts of the checkpoint", [&] {
    std::string parts;
    for (const std::uint64_t size : sizes) parts += str_format("{} bytes\n", size);
    return parts;
  });
  heartbeat_->agree(what_, do_mine);
}

void SharedWork::require_same(const std::string& what, const std::function<std::string()>& text) {
  if (!heartbeat_) return;
  const std::array<SharedArgument, 1> arguments{{{what, text()}}};
  dckpt::require_same(comm_, "share the work", arguments);
}

void SharedWork::expect(std::uint64_t bytes) {
  expected_ = bytes;
  heartbeat_ ? heartbeat_->expect(bytes / static_cast<std::uint64_t>(comm_.size()))
             : void(counter_.emplace(progress_, bytes));
}

void SharedWork::add(std::uint64_t bytes) {
  heartbeat_ ? heartbeat_->add(bytes) : counter_->add(bytes);
}

}  // namespace dckpt
