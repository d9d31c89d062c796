#include "conformance/planner_conformance.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/load_async.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/planning/validate.h"
#include "mapping/state/tree.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/threads.h"

namespace dckpt {
namespace {

/// Returns elements that encode their position.
Tensor rows(DType dtype, std::int64_t first, std::int64_t count, std::int64_t columns) {
  Tensor tensor = Tensor::zeros(dtype, {count, columns});
  if (dtype == DType::kFloat32) {
    auto* const elements = tensor.data<float>();
    for (std::int64_t i = 0; i < count * columns; ++i)
      elements[i] = static_cast<float>(first * columns + i) / 8;
  }
  return tensor;
}

StateDict sample_state(int rank, int ranks) {
  StateDict state = Value::dict();
  const auto share = [&](const std::string& key, DType dtype, std::int64_t extent) {
    const std::int64_t begin = extent * rank / ranks;
    const std::int64_t end = extent * (rank + 1) / ranks;
    state[key] =
        ShardedTensor::from_box(key, rows(dtype, begin, end - begin, 6), {extent, 6}, {begin, 0});
  };
  share("decoder.weight", DType::kFloat32, 13);
  share("optimizer.state.exp_avg.decoder.weight", DType::kFloat32, 13);
  share("decoder.few_rows", DType::kFloat32, 3);  // some ranks have none
  for (int layer = 0; layer < 5; ++layer) {
    const std::string key = "decoder.norm." + std::to_string(layer);
    state[key] = ShardedTensor::whole(key, rows(DType::kFloat32, layer, 1, 40 << layer),
                                      {.replica_id = rank});
  }
  state["decoder.mask"] =
      ShardedTensor::whole("decoder.mask", rows(DType::kBool, 0, 2, 6), {.replica_id = rank});
  state["rng"] =
      ShardedObject{.key = "rng", .data = Value(7), .replica_id = rank, .has_data = true};
  return state;
}

/// Returns all that a checkpoint stores, or that a load planner makes of it, by its key.
Dict contents_of(const Location& checkpoint, const StrategySpec& planner = {kStoredPlanner}) {
  LoadOptions options;
  options.registered_planner = planner;
  Value contents = load_plain_tensors(checkpoint, options);
  const auto reader = open_checkpoint(checkpoint, {.planner = planner});
  const std::vector<BytesStorageMetadata>& objects = reader->metadata().objects;
  for (std::size_t i = 0; i < objects.size(); ++i) contents[objects[i].key] = reader->object(i);
  contents["the common state"] = reader->common_state();
  return std::move(contents).as_dict();
}

std::vector<std::string> differing_keys(const Dict& a, const Dict& b) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : a) {
    const Value* const other = b.find(key);
    if (other == nullptr || !(*other == value)) keys.push_back(key.as_str());
  }
  for (const auto& [key, value] : b) {
    if (a.find(key) == nullptr) keys.push_back(key.as_str());
  }
  return keys;
}

/// Report and folder that checks of planners for saves and for loads share.
class ChecksInScratch {
 public:
  explicit ChecksInScratch(const Location& scratch) : scratch_(scratch) {}

 protected:
  void fail(std::string problem) { report_.problems.push_back(std::move(problem)); }

  template <typename Check>
  void check(const std::string& what, const Check& check) {
    ++report_.checks;
    const std::size_t before = report_.problems.size();
    if (const auto error = failure_of(check)) fail(error->what());
    for (std::size_t i = before; i < report_.problems.size(); ++i)
      report_.problems[i] = what + ": " + report_.problems[i];
  }

  void require_equal(const Location& a, const Location& b, const std::string& what) {
    const std::vector<std::string> differing = differing_keys(contents_of(a), contents_of(b));
    if (differing.empty()) return;
    fail(str_format("{}, but {} differ, the first: {}", what, differing.size(),
                    quote(differing.front())));
  }

  /// `errors` has each rank's outcome of the same call.
  void require_same_error(std::span<const std::optional<CheckpointError>> errors) {
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
      if (!errors[rank] || errors[rank]->code() != errors[0]->code())
        fail(str_format("a mistake of one rank is an error on all, but rank {} {}", rank,
                        errors[rank] ? "has another" : "has none"));
    }
  }

  const Location scratch_;
  ConformanceReport report_;
};

class PlannerChecks : ChecksInScratch {
 public:
  PlannerChecks(const SaveOptions& options, const Location& scratch, StateOfRank state)
      : ChecksInScratch(scratch), options_(options), state_(std::move(state)) {
    options_.overwrite = true;
    options_.planner.cache = true;
  }

  ConformanceReport run() {
    for (const int ranks : {1, 2, 4}) {
      check(str_format("a save of {} ranks", ranks), [&] {
        save_on(ranks, at(ranks));
        const auto reader = open_checkpoint(at(ranks));
        for (const TensorStorageMetadata& tensor : reader->metadata().tensors) {
          for (const CoverageProblem& problem : validate_coverage(tensor))
            fail(quote(tensor.key) + ": " + problem.message);
        }
        if (ranks > 1) require_equal(at(1), at(ranks), "one rank and more store the same");
      });
    }
    check("two saves of one state", [&] {
      save_on(4, scratch_ / "again");
      require_same_plan(at(4), scratch_ / "again", "planned anew");
    });
    check("saves that reuse plans", [&] { check_cache(); });
    check("a save in the background", [&] {
      run_ranks(4, [&](Communicator& comm) {
        AsyncSaver saver(options_, comm);
        StateDict state = state_(comm.rank(), comm.size());
        PendingSave pending = saver.save(state, scratch_ / "background");
        state = {};
        pending.wait();
      });
      require_equal(at(4), scratch_ / "background", "in the background the same is stored");
    });
    check("a state that cannot be planned", [&] { check_errors(); });
    return std::move(report_);
  }

 private:
  Location at(int ranks) const { return scratch_ / ("ranks_" + std::to_string(ranks)); }

  void save_on(int ranks, const Location& location) {
    run_ranks(ranks, [&](Communicator& comm) {
      save(state_(comm.rank(), comm.size()), location, options_, comm);
    });
  }

  /// Requires the same chunks in the same places.
  void require_same_plan(const Location& a, const Location& b, const std::string& what) {
    require_equal(a, b, "a state " + what + " becomes the same");
    const auto first = open_checkpoint(a);
    const auto second = open_checkpoint(b);
    const auto& tensors = first->metadata().tensors;
    const auto& others = second->metadata().tensors;
    for (std::size_t i = 0; i < std::min(tensors.size(), others.size()); ++i) {
      if (tensors[i].key != others[i].key || !(tensors[i].chunks == others[i].chunks) ||
          !(tensors[i].places == others[i].places))
        return fail(str_format("a state {} is planned the same way, but {} is elsewhere", what,
                               quote(tensors[i].key)));
    }
  }

  /// Saves a state without and with another tensor, in turns, in jobs with one cache and with none.
  void check_cache() {
    const auto state_in = [&](int save, Communicator& comm) {
      StateDict state = state_(comm.rank(), comm.size());
      if (save == 2)
        state["another"] = ShardedTensor::whole("another", rows(DType::kFloat32, 0, 2, 6),
                                                {.replica_id = comm.rank()});
      return state;
    };
    const auto name = [&](const std::string& job, int save) {
      return scratch_ / (job + "_" + std::to_string(save));
    };
    run_ranks(4, [&](Communicator& comm) {
      SavePlanCache cache;
      for (int i = 0; i < 4; ++i) {
        dckpt::save(state_in(i, comm), name("cached", i), options_, comm, cache);
        dckpt::save(state_in(i, comm), name("fresh", i), options_, comm);
      }
    });
    for (int i = 0; i < 4; ++i)
      require_same_plan(name("fresh", i), name("cached", i),
                        "planned with a cache, in save " + std::to_string(i + 1) + ",");
  }

  /// Saves a shape on which ranks disagree, which is an error whatever the planner does with it.
  void check_errors() {
    std::array<std::optional<CheckpointError>, 4> errors;
    run_ranks(4, [&](Communicator& comm) {
      SavePlanCache cache;
      StateDict state = state_(comm.rank(), comm.size());
      const Shape shape{comm.rank() == 2 ? 3 : 2, 6};
      state["contradiction"] = ShardedTensor::whole(
          "contradiction", rows(DType::kFloat32, 0, shape[0], 6), {.replica_id = comm.rank()});
      errors[static_cast<std::size_t>(comm.rank())] =
          failure_of([&] { save(state, scratch_ / "refused", options_, comm, cache); });
      save(state_(comm.rank(), comm.size()), scratch_ / "after", options_, comm, cache);
    });
    require_same_error(errors);
    if (scratch_.storage()->stat((scratch_ / "refused").name()))
      fail("a refused save leaves nothing, but there is a checkpoint");
    require_equal(at(4), scratch_ / "after", "the save after one that failed stores the same");
  }

  SaveOptions options_;
  const StateOfRank state_;
};

class LoadPlannerChecks : ChecksInScratch {
 public:
  LoadPlannerChecks(const Policy& policy, const Location& scratch, StateOfRank state)
      : ChecksInScratch(scratch), policy_(policy), state_(std::move(state)) {
    policy_.save.overwrite = true;
  }

  ConformanceReport run() {
    check("a save of 4 ranks", [&] {
      run_ranks(4, [&](Communicator& comm) {
        save(state_(comm.rank(), comm.size()), stored(), policy_.save, comm);
      });
    });
    for (const int ranks : {1, 2, 4}) {
      for (const bool together : {false, true})
        check(str_format("a load of {} ranks{}", ranks, together ? " with load.parallel" : ""),
              [&] {
                load_on(ranks, together,
                        [&](StateDict& state, const LoadOptions& load, Communicator& comm) {
                          dckpt::load(state, stored(), load, comm);
                        });
              });
    }
    check("a second load into the same state", [&] {
      load_on(4, false, [&](StateDict& state, const LoadOptions& load, Communicator& comm) {
        dckpt::load(state, stored(), load, comm);
        dckpt::load(state, stored(), load, comm);
      });
    });
    check("a load in the background", [&] {
      load_on(4, false, [&](StateDict& state, const LoadOptions& load, Communicator& comm) {
        AsyncLoader loader(comm);
        loader.load(state, stored(), load).wait(state);
      });
    });
    check("a load that fails on one rank", [&] { check_errors(); });
    check("readers without a state", [&] { check_contents(); });
    return std::move(report_);
  }

 private:
  Location stored() const { return scratch_ / "stored"; }

  /// Requires that `act` loads the same as the first load (both are saved by the built-in rules and
  /// compared), and that the tensors of a rank's state keep their memory.
  template <typename Act>
  void load_on(int ranks, bool together, const Act& act) {
    const Location loaded = scratch_ / "loaded";
    SaveOptions plain;
    plain.overwrite = true;
    std::mutex failing;
    run_ranks(ranks, [&](Communicator& comm) {
      StateDict state = without_contents(state_(comm.rank(), comm.size()));
      const std::vector<const std::byte*> before = memory_of(state);
      LoadOptions options = policy_.load;
      options.parallel.enabled = together;
      act(state, options, comm);
      if (memory_of(state) != before) {
        const std::lock_guard lock(failing);
        fail(str_format("tensors of the state are filled where they are, but rank {} has others",
                        comm.rank()));
      }
      save(state, first_ ? scratch_ / "expected" : loaded, plain, comm);
    });
    if (!std::exchange(first_, false))
      require_equal(scratch_ / "expected", loaded, "every load gives the same");
  }

  /// Requires that readers without a state see what loads fill a state with, where it has the keys.
  void check_contents() {
    const Dict seen = contents_of(stored(), policy_.load.registered_planner);
    for (const auto& [key, value] : contents_of(scratch_ / "expected")) {
      const Value* const same = seen.find(key);
      if (same != nullptr && value.is_tensor() && !(*same == value))
        fail(str_format("readers without a state see what loads fill a state with, but {} differs",
                        quote(key.as_str())));
    }
  }

  /// Returns the state with other elements, so that a tensor which is not filled shows.
  static StateDict without_contents(StateDict state) {
    const auto overwrite = [](const Tensor& tensor) {
      if (tensor.has_data() && tensor.device().kind == Device::Kind::kCpu && tensor.is_contiguous())
        std::memset(tensor.mutable_data(), 1, tensor.nbytes());  // also a valid bool
    };
    any_leaf(state, [&](const Value& leaf) {
      if (leaf.is_tensor()) overwrite(leaf.as_tensor());
      if (leaf.is(Value::Kind::kShardedTensor) && leaf.as_sharded_tensor().data)
        overwrite(*leaf.as_sharded_tensor().data);
      return false;
    });
    return state;
  }

  static std::vector<const std::byte*> memory_of(const StateDict& state) {
    std::vector<const std::byte*> memory;
    any_leaf(state, [&](const Value& leaf) {
      if (leaf.is(Value::Kind::kShardedTensor) && leaf.as_sharded_tensor().data)
        memory.push_back(leaf.as_sharded_tensor().data->data());
      return false;
    });
    return memory;
  }

  /// Fails on rank 2: by a key that is not stored, unless the planner supplies it, and by a hook,
  /// unless the planner leaves out everything.
  void check_errors() {
    for (const bool by_hook : {false, true}) {
      std::array<std::optional<CheckpointError>, 4> errors;
      run_ranks(4, [&](Communicator& comm) {
        StateDict state = state_(comm.rank(), comm.size());
        LoadHooks hooks;
        if (comm.rank() == 2 && by_hook)
          hooks.tensor_ready = [](const std::string&, const Tensor&) {
            throw_error(ErrorCode::kCancelled, "the hook of rank 2 fails");
          };
        if (comm.rank() == 2 && !by_hook)
          state["not stored"] =
              ShardedTensor::whole("not stored", Tensor::zeros(DType::kFloat32, {2}));
        errors[static_cast<std::size_t>(comm.rank())] =
            failure_of([&] { load(state, stored(), policy_.load, comm, hooks); });
      });
      if (std::ranges::any_of(errors, [](const auto& error) { return error.has_value(); }))
        require_same_error(errors);
    }
    load_on(4, false, [&](StateDict& state, const LoadOptions& load, Communicator& comm) {
      dckpt::load(state, stored(), load, comm);
    });
  }

  Policy policy_;
  const StateOfRank state_;
  bool first_ = true;  ///< no load to compare with yet
};

}  // namespace

ConformanceReport check_planner(const SaveOptions& options, const Location& scratch,
                                const StateOfRank& state) {
  make_save_planner(options);  // throws for an unknown name
  return PlannerChecks(options, scratch, state ? state : sample_state).run();
}

ConformanceReport check_load_planner(const Policy& policy, const Location& scratch,
                                     const StateOfRank& state) {
  if (make_load_planner(policy.load) == nullptr)
    throw_error(ErrorCode::kInvalidArgument,
                "check_load_planner: the policy names no planner (load.planner.kind)");
  return LoadPlannerChecks(policy, scratch, state ? state : sample_state).run();
}

}  // namespace dckpt
