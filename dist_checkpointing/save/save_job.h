#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/save/describe_state.h"
#include "dist_checkpointing/save/save_hooks.h"
#include "dist_checkpointing/save/save_report.h"
#include "mapping/planning/save_planner.h"
#include "strategies/comm/communicator.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/hashing.h"
#include "strategies/storage/location.h"
#include "strategies/storage/publish.h"

namespace dckpt {

/// One save on one rank; every rank runs the same steps in this order, the last two perhaps in
/// another thread. The protocol is at the top of save_job.cpp. Everything that it refers to must
/// outlive it. If a step throws, it throws the same CheckpointError on every rank, and the job is
/// over.
class SaveJob {
 public:
  /// `planner`: what this rank remembers about plans; cleared if the save fails.
  SaveJob(const Location& location, SaveOptions options, Communicator& comm, SavePlanner& planner,
          const SaveHooks& hooks);

  /// Describes the state and agrees on who writes what. Collective.
  void plan(const StateDict& state);

  /// What this rank writes, and where the bytes of its items are. The description may be moved
  /// from, except for its paths and common state.
  const SavePlan& items() const noexcept { return *items_; }
  DescribedState& described() noexcept { return described_; }

  /// Writes the items and publishes the checkpoint. Collective. `staged`: what was copied for that
  /// on this rank.
  SaveReport write(ItemSource& source, const std::function<SaveReport::Phase()>& staged = {});

 private:
  void require_same_call();
  void describe(const StateDict& state);
  void compare_common();
  std::vector<Bytes> assign(const std::vector<Bytes>& proposals);
  void accept(ByteView assignment);
  std::shared_ptr<Storage> metered_storage(std::shared_ptr<StorageCounters> counters) const;
  std::map<std::string, std::string> digests() const;
  WrittenItems write_data(ItemSource& source);
  void publish(const std::vector<Bytes>& results);
  template <typename Step>
  void remembering(Step&& step);

  SaveOptions options_;
  Communicator& comm_;
  SavePlanner& planner_;
  const SaveHooks& hooks_;
  Heartbeat heartbeat_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const Location target_;
  std::shared_ptr<FileDigests> digests_;  ///< of what this rank writes; null without a manifest
  std::unique_ptr<SaveStrategy> strategy_;
  DescribedState described_;
  Bytes proposal_;
  const SavePlan* items_ = nullptr;
  std::string staging_;                     ///< where to write, relative to the storage
  std::optional<Publication> publication_;  ///< rank 0
  SaveReport report_;                       ///< rank 0 completes it
};

}  // namespace dckpt
