#include "benchmarks/background.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/process_stats.h"
#include "benchmarks/workloads.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save_async.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt::bench {
namespace {

constexpr int kSaves = 4;
constexpr auto kIdle = std::chrono::milliseconds(500);

double seconds_of(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Returns the rounds per second of work that stays in the cache of its core, until `ended`.
double rate_of_work(const std::function<bool()>& ended) {
  std::vector<float> values(4096, 1.0F);
  double rounds = 0;
  const double seconds = seconds_of([&] {
    for (; !ended(); ++rounds) {
      for (int i = 0; i < 64; ++i) {
        for (float& value : values) value = value * 0.999F + 0.001F;
      }
      volatile float used = values[0];
      static_cast<void>(used);
    }
  });
  return rounds / seconds;
}

double idle_rate() {
  const auto end = std::chrono::steady_clock::now() + kIdle;
  return rate_of_work([&] { return std::chrono::steady_clock::now() >= end; });
}

void overwrite(const StateDict& state, int value) {
  for (const auto& [key, shard] : state.as_dict()) {
    const Tensor& data = *shard.as_sharded_tensor().data;
    std::memset(data.mutable_data(), value, data.nbytes());
  }
}

/// Copies every tensor into memory that has already been used.
void copy(const StateDict& from, const StateDict& to) {
  for (const auto& [key, shard] : from.as_dict()) {
    const Tensor& data = *shard.as_sharded_tensor().data;
    std::memcpy(to.at(key.as_str()).as_sharded_tensor().data->mutable_data(), data.data(),
                data.nbytes());
  }
}

}  // namespace

double measure_background(const BackgroundWorkload& measured, Snapshot snapshot,
                          const std::filesystem::path& directory, Results& results) {
  const std::vector<Workload> all = workloads();
  const Workload& workload = *std::ranges::find(all, measured.tensors, &Workload::name);
  const std::string name =
      std::string(measured.name) + (snapshot == Snapshot::kLazy ? ":lazy" : "");
  const RankState rank(workload, {}, 0, 1, RankState::Content::kValues);
  const RankState loaded(workload, {}, 0, 1, RankState::Content::kZeros);
  const StateDict state = rank.state();
  const auto alone = single_rank();
  SaveOptions options;
  options.async.snapshot = snapshot;
  const std::uint64_t before = resident_bytes();
  reset_peak();
  return seconds_of([&] {
    AsyncSaver saver(options, *alone);
    for (int n = 0; n < kSaves; ++n) {
      std::filesystem::remove_all(directory);
      ::sync();
      const double idle = idle_rate();
      std::optional<PendingSave> pending;
      const double stall = seconds_of([&] { pending = saver.save(state, directory); });
      const double staged = seconds_of([&] { saver.wait_staged(); });
      const double touch = seconds_of([&] { overwrite(state, n); });
      double busy = 0;
      const double background = seconds_of([&] {
        busy = rate_of_work([&] { return pending->done(); });
        pending->wait();
      });
      if (n == 0) {
        StateDict destination = loaded.state();
        load(destination, directory);
        loaded.check();
        results.add(name, "stall_first_s", "s", stall);
        continue;
      }
      results.add(name, "copy_touch_s", "s", seconds_of([&] {
                    copy(state, loaded.state());
                    overwrite(state, n);
                  }),
                  "memcpy and memset of all tensors, one thread");
      results.add(name, "stall_s", "s", stall);
      if (snapshot == Snapshot::kLazy) results.add(name, "wait_staged_s", "s", staged);
      results.add(name, "touch_s", "s", touch);
      results.add(name, "stall_touch_s", "s", stall + staged + touch);
      results.add(name, "background_s", "s", background);
      results.add(name, "complete_s", "s", stall + staged + touch + background);
      results.add(name, "busy_rate", "x", busy / idle, "of its rate without a save");
    }
    results.add(
        name, "save_extra_rss_bytes", "B",
        static_cast<double>(peak_resident_bytes() - std::min(before, peak_resident_bytes())));
    std::filesystem::remove_all(directory);
  });
}

}  // namespace dckpt::bench
