#include "operations/upkeep/fleet.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/storage_name.h"
#include "operations/inspect/verify.h"
#include "operations/upkeep/fleet_state.h"
#include "operations/upkeep/may_go_on.h"
#include "strategies/formats/safetensors/index.h"
#include "strategies/storage/throttled.h"

namespace dckpt {
namespace {

/// A checkpoint, or the reason why a path leads to none.
struct FleetMember {
  std::string path;
  std::optional<Location> place{};
  std::optional<CheckpointError> error{};
};

/// The files of a checkpoint as a listing shows them.
struct Appearance {
  std::string print;
  std::int64_t newest = 0;
  bool has_times = true;  ///< otherwise a change cannot be noticed
};

class Looker {
 public:
  Appearance look(const Location& checkpoint) {
    if (checkpoint.is_directory()) {
      add_all(*checkpoint.directory(), "");
    } else {
      const Storage& storage = *checkpoint.storage();
      const bool is_index = checkpoint.name().ends_with(kSafetensorsIndexSuffix);
      for (const FileInfo& entry : storage.list("")) {
        const bool belongs = entry.name == checkpoint.name() ||
                             (is_index && entry.name.ends_with(kSafetensorsSuffix));
        if (belongs) add(storage, entry, entry.name);
      }
    }
    found_.print = hash_.finish_hex();
    return found_;
  }

 private:
  void add_all(const Storage& storage, const std::string& directory) {
    for (const FileInfo& entry : storage.list(directory)) {
      const std::string name = join_name(directory, entry.name);
      if (entry.kind == FileInfo::Kind::kDirectory)
        add_all(storage, name);  // names end at kMaxNameDepth
      else
        add(storage, entry, name);
    }
  }

  void add(const Storage& storage, const FileInfo& entry, const std::string& name) {
    const bool is_link = entry.kind == FileInfo::Kind::kOther;
    const FileInfo file = is_link ? storage.stat_target(name).value_or(entry) : entry;
    const std::string line = str_format("{} {} {}\n", file.size, file.modified, name);
    hash_.update(as_bytes(line));
    found_.newest = std::max(found_.newest, file.modified);
    found_.has_times = found_.has_times && file.modified != 0;
  }

  Sha256 hash_;
  Appearance found_;
};

/// Returns the checkpoints that a path names: all of a training root.
std::vector<FleetMember> members_of(const std::string& path) try {
  const Location location(path);
  std::vector<FleetMember> members;
  if (location.is_directory()) {
    const auto add = [&](const std::string& name) {
      const Location checkpoint = location / name;
      members.push_back({checkpoint.display(), checkpoint});
    };
    if ((location / kReleaseDirectory).is_directory()) add(kReleaseDirectory);
    for (const std::uint64_t iteration : list_iterations(location))
      add(iteration_directory(iteration));
  }
  if (members.empty()) members.push_back({path, resolve_checkpoint(location)});
  return members;
} catch (const CheckpointError& error) {
  return {{.path = path, .error = error}};
}

bool is_passing(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kUnavailable || code == ErrorCode::kInternal;
}

class Fleet {
 public:
  Fleet(const FleetOptions& options, const std::function<void(const FleetResult&)>& each)
      : options_(options),
        each_(each),
        rate_(std::make_shared<ReadRate>(options.max_rate, options.stop)),
        state_(options.state) {}

  void run(const std::vector<std::string>& paths) {
    const std::vector<FleetMember> members = all_members(paths);
    const auto threads = static_cast<std::size_t>(std::max(options_.threads, 1));
    threads_each_ = static_cast<int>(threads / std::clamp<std::size_t>(members.size(), 1, threads));
    try {
      parallel_for(members.size(), options_.threads, [&](std::size_t i) { check(members[i]); });
    } catch (...) {
      const std::lock_guard lock(mutex_);
      state_.save();
      throw;
    }
    state_.forget_missing(seen_);
    state_.save();
  }

 private:
  std::vector<FleetMember> all_members(const std::vector<std::string>& paths) {
    std::vector<std::vector<FleetMember>> of_each(paths.size());
    parallel_for(paths.size(), options_.threads, [&](std::size_t i) {
      require_not_stopped();
      of_each[i] = members_of(paths[i]);
    });
    std::vector<FleetMember> members;
    for (std::vector<FleetMember>& some : of_each) {
      for (FleetMember& member : some) {
        if (seen_.insert(member.place ? member.place->absolute() : member.path).second)
          members.push_back(std::move(member));
      }
    }
    return members;
  }

  void require_not_stopped() const {
    if (options_.stop.stop_requested())
      throw_error(ErrorCode::kCancelled, "a stop was requested before all were verified");
  }

  void check(const FleetMember& member) {
    require_not_stopped();
    FleetResult result{.path = member.path, .deep = options_.deep};
    if (member.error) {
      refuse(result, *member.error);
      return report(result, nullptr, "");
    }
    std::optional<Appearance> before;
    try {
      before = Looker().look(*member.place);
      if (const auto known = remembered(*member.place, *before)) {
        result = *known;
        result.path = member.path;
        result.status = FleetResult::Status::kUnchanged;
        return report(result, nullptr, "");
      }
      verify_one(*member.place, result);
    } catch (const CheckpointError& error) {
      refuse(result, error);
    }
    require_not_stopped();  // else a stop would count as a problem
    if (result.refused == ErrorCode::kIncomplete && before) {
      if (is_claimed(*member.place)) {
        result = {.path = member.path, .status = FleetResult::Status::kBeingSaved};
        return report(result, nullptr, "");
      }
      if (changed_lately(before->newest))
        result.problem += "; it has just changed: a job may still be writing it";
    }
    report(result, &*member.place, print_to_keep(*member.place, before));
  }

  /// Returns "" if the checkpoint has changed meanwhile, or if a change could not be noticed.
  static std::string print_to_keep(const Location& place, const std::optional<Appearance>& before) {
    try {
      if (before && before->has_times && Looker().look(place).print == before->print)
        return before->print;
    } catch (const CheckpointError&) {  // it is gone, or cannot be listed any more
    }
    return "";
  }

  std::optional<FleetResult> remembered(const Location& place, const Appearance& appearance) {
    const std::lock_guard lock(mutex_);
    const FleetResult* const known = state_.find(place.absolute(), appearance.print);
    if (known == nullptr || (options_.deep && !known->deep)) return std::nullopt;
    return *known;
  }

  void verify_one(const Location& place, FleetResult& result) {
    const Location throttled(throttled_storage(place.storage(), rate_), place.name());
    const VerifyReport found =
        verify(*open_checkpoint(throttled), {.deep = options_.deep, .threads = threads_each_});
    result.format = found.format;
    result.bytes = found.bytes;
    result.problems = found.problems.size();
    if (found.ok()) return;
    result.problem = found.problems.front().what();
    const auto passes = [](const CheckpointError& problem) { return is_passing(problem.code()); };
    if (std::ranges::any_of(found.problems, passes)) result.refused = ErrorCode::kIo;
  }

  static void refuse(FleetResult& result, const CheckpointError& error) {
    result.problems = 1;
    result.problem = error.what();
    result.refused = error.code();
  }

  /// Returns whether a job that may be alive says that it is saving there.
  static bool is_claimed(const Location& place) try {
    return !place.name().empty() && place.is_directory() &&
           may_go_on(Location(place.storage()), place.name(), 0);
  } catch (const CheckpointError&) {
    return false;
  }

  /// Remembers the result under `print`, unless that is empty.
  void report(const FleetResult& result, const Location* place, const std::string& print) {
    const std::lock_guard lock(mutex_);
    each_(result);
    if (place == nullptr) return;
    if (print.empty() || (result.refused && is_passing(*result.refused)))
      state_.remove(place->absolute());
    else
      state_.add(place->absolute(), print, result);
    state_.save_sometimes();
  }

  const FleetOptions& options_;
  const std::function<void(const FleetResult&)>& each_;
  const std::shared_ptr<ReadRate> rate_;
  int threads_each_ = 1;
  std::set<std::string> seen_;  // absolute names of the members
  std::mutex mutex_;
  FleetState state_;
};

}  // namespace

void verify_fleet(const std::vector<std::string>& paths, const FleetOptions& options,
                  const std::function<void(const FleetResult&)>& each) try {
  Fleet(options, each).run(paths);
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
