#include "conformance/strategy_conformance.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "conformance/strategy_trial.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/storage_name.h"
#include "mapping/planning/validate.h"
#include "strategies/comm/threads.h"
#include "strategies/registry/registry.h"

namespace dckpt {
namespace conformance {
namespace {

constexpr std::size_t kDamagedDataFiles = 32;

/// Returns the names of all files of a tree.
std::vector<std::string> files_in(const Storage& storage, const std::string& directory = "") {
  std::vector<std::string> files;
  for (const FileInfo& entry : storage.list(directory)) {
    const std::string name = join_name(directory, entry.name);
    if (entry.kind == FileInfo::Kind::kRegular) files.push_back(name);
    if (entry.kind != FileInfo::Kind::kDirectory) continue;
    const std::vector<std::string> below = files_in(storage, name);
    files.insert(files.end(), below.begin(), below.end());
  }
  return files;
}

Bytes content_of(const Storage& storage, const std::string& file) {
  const auto readable = storage.open(file);
  return read_file(*readable, readable->size());
}

void write(Storage& storage, const std::string& file, ByteView content) {
  storage.make_directory(parent_name(file));
  const auto writable = storage.create(file);
  writable->append(content);
  writable->close();
}

void cut_in_half(Storage& storage, const std::string& file) {
  const Bytes content = content_of(storage, file);
  storage.remove_all(file);
  write(storage, file, ByteView(content).first(content.size() / 2));
}

/// Checks that a load returns the saved data.
struct RoundTrips : StrategyTrial {
  using StrategyTrial::StrategyTrial;

  void round_trip(const std::string& name, int savers, int loaders) {
    run_ranks(savers, [&](Communicator& comm) {
      save(saved_by(comm.rank(), savers), path(name), options_, comm);
    });
    std::vector<StateDict> loaded(static_cast<std::size_t>(loaders));
    run_ranks(loaders, [&](Communicator& comm) {
      StateDict& state = loaded[static_cast<std::size_t>(comm.rank())];
      state = shards_of(tensors_, comm.rank(), loaders, false);
      load(state, path(name), {}, comm);
    });
    for (int rank = 0; rank < loaders; ++rank) {
      const StateDict expected = shards_of(tensors_, rank, loaders, true);
      for (const auto& [key, tensor] : tensors_)
        expect_equal(key, loaded[static_cast<std::size_t>(rank)].at(key).as_tensor(),
                     *expected.at(key).as_sharded_tensor().data);
    }
  }

  void flattened_ranges() {
    const Shape shape{6, 7, 5};
    const Tensor all = pattern(DType::kFloat32, shape, "flat");
    const auto state_of = [&](int rank, int ranks, bool with_data) {
      const auto [begin, count] = uneven_part(all.numel(), rank, ranks);
      const Tensor part = with_data ? all.view({all.numel()}).narrow(0, begin, count)
                                    : Tensor::empty(DType::kFloat32, {count});
      StateDict state;
      state["flat"] = ShardedTensor::from_flat_range("flat", part, shape, shape, Shape(3, 0),
                                                     {begin, begin + count});
      return state;
    };
    run_ranks(3, [&](Communicator& comm) {
      save(state_of(comm.rank(), 3, true), path("flat"), options_, comm);
    });
    for (int rank = 0; rank < 4; ++rank) {
      StateDict state = state_of(rank, 4, false);
      load(state, path("flat"), {.validate_access_integrity = false});
      if (const auto expected = state_of(rank, 4, true).at("flat").as_sharded_tensor();
          expected.numel() > 0)
        expect_equal("flat", state.at("flat").as_tensor(), *expected.data);
    }
    StateDict whole_tensor;
    whole_tensor["flat"] = ShardedTensor::whole("flat", Tensor::empty(DType::kFloat32, shape));
    load(whole_tensor, path("flat"));
    expect_equal("flat", whole_tensor.at("flat").as_tensor(), all);
  }

  void strided() {
    const Tensor rows = pattern(DType::kInt32, {300, 200}, "strided");
    const Tensor columns(rows.dtype(), {200, 300}, {1, 200}, rows.mutable_data(), rows.owner());
    StateDict state;
    state["strided"] = ShardedTensor::whole("strided", columns);
    save(state, path("strided"), options_);
    StateDict loaded;
    loaded["strided"] = ShardedTensor::whole("strided", Tensor::empty(DType::kInt32, {200, 300}));
    load(loaded, path("strided"));
    expect_equal("strided", loaded.at("strided").as_tensor(), columns.contiguous());
  }

  void replicas() {
    SaveOptions options = options_;
    options.parallel.enabled = true;
    const Tensor all = pattern(DType::kFloat32, {64, 64}, "replicated");
    run_ranks(3, [&](Communicator& comm) {
      StateDict state;
      for (const char* const key : {"a", "b", "c", "d"})
        state[key] = ShardedTensor::whole(key, all, {.replica_id = comm.rank()});
      save(state, path("replicas"), options, comm);
    });
    const StateDict loaded = load_plain_tensors(path("replicas"));
    for (const char* const key : {"a", "b", "c", "d"})
      expect_equal(key, loaded.at(key).as_tensor(), all);
  }

  void empty() {
    save(Value::dict(), path("empty"), options_);
    (void)open_checkpoint(path("empty"));
  }

  void objects() {
    const auto value = [](int rank) {
      return Value::dict({{"rank", rank},
                          {"none", Value()},
                          {"tuple", Value::tuple({Value(1), Value("two"), Value(3.5)})},
                          {"bytes", Value::bytes(to_bytes(std::string("\0\xFF", 2)))},
                          {Value(7), pattern(DType::kUInt8, {100}, "state")}});
    };
    run_ranks(3, [&](Communicator& comm) {
      StateDict state;
      state["rng"] = ShardedObject{.key = "rng",
                                   .data = value(comm.rank()),
                                   .global_shape = {3},
                                   .global_offset = {comm.rank()}};
      state["shared"] =
          ShardedObject{.key = "shared", .data = "the same", .replica_id = comm.rank()};
      save(state, path("objects"), options_, comm);
    });
    StateDict state;
    for (int rank = 0; rank < 3; ++rank)
      state["rng" + std::to_string(rank)] = ShardedObject{
          .key = "rng", .global_shape = {3}, .global_offset = {rank}, .has_data = false};
    state["shared"] = ShardedObject{.key = "shared", .has_data = false};
    load(state, path("objects"));
    for (int rank = 0; rank < 3; ++rank)
      expect(state.at("rng" + std::to_string(rank)).as_sharded_object().data == value(rank),
             str_format("object 'rng' of rank {} differs from what was saved", rank));
    expect(state.at("shared").as_sharded_object().data == Value("the same"),
           "object 'shared' differs from what was saved");
  }

  void common_state() {
    const Value saved = Value::dict(
        {{"iteration", 12},
         {"args", Value::dict({{"lr", 1e-4}, {"none", Value()}})},
         {Value(3), Value::tuple({Value(true), Value("text")})},
         {"list", Value::list({Value(1), pattern(DType::kFloat32, {3, 2}, "in the common state")})},
         {"empty", Value::dict()}});
    StateDict state = saved;
    state["w"] = ShardedTensor::whole("w", pattern(DType::kFloat32, {2}, "w"));
    save(state, path("common"), options_);
    expect(load_common_state(path("common")) == saved,
           "the common state differs from what was saved");
  }

  void in_background() {
    for (const Snapshot snapshot : {Snapshot::kEager, Snapshot::kLazy}) {
      run_ranks(2, [&](Communicator& comm) {
        SaveOptions options = options_;
        options.async.snapshot = snapshot;
        options.async.staging_memory =
            2 << 20;  // less than the state: a part is written from the state itself
        AsyncSaver saver(options, comm);
        StateDict state = saved_by(comm.rank(), 2);
        saver.save(state, path("background"));
        saver.wait_staged();
        for (const auto& [key, shard] : state.as_dict()) {
          const Tensor data = *shard.as_sharded_tensor().data;
          std::ranges::fill(data.mutable_bytes(), std::byte{0});
        }
        saver.wait();
      });
      expect_all(path("background"));
    }
  }

  void at_the_same_time() {
    std::exception_ptr failure;
    {
      std::jthread other([&] {
        try {
          save(saved_by(0, 1), path("second"), options_);
        } catch (...) {
          failure = std::current_exception();
        }
      });
      save(saved_by(0, 1), path("first"), options_);
    }
    if (failure) std::rethrow_exception(failure);
    expect_all(path("first"));
    expect_all(path("second"));
  }
};

/// Checks the files that a save leaves, intact and damaged.
struct StoredFiles : StrategyTrial {
  using StrategyTrial::StrategyTrial;

  void metadata_agree(const std::string& name) {
    const auto reader = open_checkpoint(path(name));
    const Metadata& metadata = reader->metadata();
    expect(metadata.tensors.size() == tensors_.size(),
           str_format("the metadata has {} tensors instead of {}", grouped(metadata.tensors.size()),
                      grouped(tensors_.size())));
    for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata.tensors[i];
      const auto saved = tensors_.find(tensor.key);
      if (saved == tensors_.end()) {
        problem(str_format("the metadata has the key {}, which was not saved", quote(tensor.key)));
        continue;
      }
      expect(tensor.properties.dtype == saved->second.dtype() &&
                 equal(tensor.global_shape(), saved->second.shape()),
             "the metadata describe another tensor under " + quote(tensor.key));
      for (const CoverageProblem& wrong : validate_coverage(tensor))
        problem(str_format("the chunks of {}: {}", quote(tensor.key), wrong.message));
      check_places(*reader, i);
    }
  }

  void check_places(const CheckpointReader& reader, std::size_t tensor) {
    const TensorStorageMetadata& entry = reader.metadata().tensors[tensor];
    for (std::size_t chunk = 0; chunk < entry.places.size(); ++chunk) {
      const StorageInfo& place = entry.places[chunk];
      const auto file = reader.storage().open(reader.metadata().files.at(place.file));
      expect(place.offset <= file->size() && place.length <= file->size() - place.offset,
             str_format("chunk {} of {} reaches beyond its file", chunk, quote(entry.key)));
      const ChunkPayload payload = reader.locate(tensor, chunk, *file);
      expect(payload.dtype == entry.properties.dtype,
             str_format("the element type of chunk {} of {} differs from its tensor", chunk,
                        quote(entry.key)));
    }
  }

  void manifest() {
    SaveOptions options = options_;
    options.integrity = true;
    save(saved_by(0, 1), path("manifest"), options);
    verify_integrity(*open_checkpoint(path("manifest")), 0, 1, 1);
  }

  /// Returns all files that are not data files, and a sample of those that are.
  std::vector<std::string> files_to_damage(const std::vector<std::string>& files) {
    const auto reader = open_checkpoint(path("shards"));
    const std::vector<std::string>& named = reader->metadata().files;
    const std::unordered_set<std::string> data(named.begin(), named.end());
    const std::size_t step = data.size() / kDamagedDataFiles + 1;
    std::vector<std::string> chosen;
    std::size_t number = 0;
    for (const std::string& file : files) {
      if (!data.contains(file) || number++ % step == 0) chosen.push_back(file);
    }
    return chosen;
  }

  /// Damages the files of a checkpoint one after the other: loading must fail with a
  /// CheckpointError, or return the saved data.
  void damaged(const std::string& name,
               const std::function<void(Storage&, const std::string& file)>& damage) {
    const std::shared_ptr<Storage> original = path("shards").directory();
    const Location copy = path("damaged-" + name);
    const std::vector<std::string> files = files_in(*original);
    copy.storage()->remove_all(copy.name());
    for (const std::string& file : files)
      write(*copy.directory(), file, content_of(*original, file));
    for (const std::string& file : files_to_damage(files)) {
      damage(*copy.directory(), file);
      try {
        expect_all(copy);
      } catch (const CheckpointError&) {
      } catch (const std::exception& error) {
        problem(
            str_format("without a sound {} loading throws something other than CheckpointError: {}",
                       quote(file), error.what()));
      }
      copy.directory()->remove_all(file);
      write(*copy.directory(), file, content_of(*original, file));
    }
  }
};

}  // namespace
}  // namespace conformance

ConformanceReport check_strategy(const SaveOptions& options, const Location& scratch) try {
  conformance::TriedStrategy tried(options, scratch);
  const Capabilities& can = tried.can;
  conformance::RoundTrips trips(tried);
  conformance::StoredFiles files(tried);
  trips.check("shards of any type and shape, saved by 3 ranks and loaded by 2",
              [&] { trips.round_trip("shards", 3, 2); });
  trips.check("the same, saved by 1 rank and loaded by 4",
              [&] { trips.round_trip("alone", 1, 4); });
  files.check("metadata that agree with the state and with the files",
              [&] { files.metadata_agree("shards"); });
  if (can.cut_tensors) trips.check("flattened ranges", [&] { trips.flattened_ranges(); });
  trips.check("strided tensors", [&] { trips.strided(); });
  trips.check("replicas, of which any may write", [&] { trips.replicas(); });
  trips.check("an empty state", [&] { trips.empty(); });
  if (can.objects) trips.check("objects", [&] { trips.objects(); });
  if (can.common_state && options.compat != Compat::kDcp)
    trips.check("common state", [&] { trips.common_state(); });
  if (can.integrity) files.check("a manifest of its files", [&] { files.manifest(); });
  trips.check("a save in the background", [&] { trips.in_background(); });
  trips.check("two saves at the same time", [&] { trips.at_the_same_time(); });
  files.check("a checkpoint from which a file is missing",
              [&] { files.damaged("missing", &Storage::remove_all); });
  files.check("a checkpoint with a file cut in half",
              [&] { files.damaged("cut", conformance::cut_in_half); });
  return std::move(tried.report);
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
