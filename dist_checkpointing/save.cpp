// How ranks save together. Between two collectives every rank does local work inside agree(), so that no rank leaves alone.
//
//   1. Each rank plans what it holds; the plans go to rank 0.
//   2. Rank 0 decides who writes what, begins the publication, and tells each rank its items and where to write them.
//   3. Each rank writes its data files and makes them durable; what lies where goes to rank 0.
//   4. Rank 0 writes the common state, .metadata and metadata.json, and publishes.
//
// A rank that fails in any step fails all of them, and rank 0 removes what was written.

#include "dist_checkpointing/save.h"

#include <algorithm>
#include <optional>

#include "dist_checkpointing/describe_state.h"
#include "dist_checkpointing/staging_token.h"
#include "dist_checkpointing/target_path.h"
#include "mapping/base/error.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"
#include "strategies/state_source.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/publish.h"
#include "strategies/torch_dist/writer.h"

namespace dckpt {
namespace {

/// What rank 0 tells a rank: where to write, and the planner's answer.
Bytes encode_assignment(const std::string& staging, ByteView answer) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.text(staging);
  writer.text(as_text(answer));
  return bytes;
}

struct Assignment {
  std::string staging;
  std::string answer;
};

Assignment decode_assignment(ByteView bytes) {
  WireReader reader(bytes, "the assignment from rank 0");
  Assignment assignment;
  assignment.staging = reader.text();
  assignment.answer = reader.text();
  reader.finish();
  return assignment;
}

Bytes encode_written(const WrittenItems& written) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(written.files.size());
  for (const std::string& file : written.files) writer.text(file);
  writer.number(written.places.size());
  for (const Place& place : written.places) {
    writer.number(place.file);
    writer.number(place.offset);
    writer.number(place.length);
  }
  return bytes;
}

WrittenItems decode_written(ByteView bytes) {
  WireReader reader(bytes, "a rank's list of what it wrote");
  WrittenItems written;
  const std::size_t files = reader.count();
  for (std::size_t i = 0; i < files; ++i) written.files.push_back(reader.text());
  const std::size_t places = reader.count();
  for (std::size_t i = 0; i < places; ++i) {
    Place place;
    const std::uint64_t file = reader.number();
    if (file >= files) reader.malformed("it names a file that is not in the list");
    place.file = static_cast<std::uint32_t>(file);
    place.offset = reader.number();
    place.length = reader.number();
    written.places.push_back(place);
  }
  reader.finish();
  return written;
}

class Saving {
 public:
  Saving(const StateDict& state, const std::filesystem::path& directory, const SaveOptions& options, Communicator& comm, SavePlanner& planner)
      : state_(state), options_(options), comm_(comm), planner_(planner), target_(split_target(directory)), storage_(posix_storage(target_.parent)) {}

  void run() {
    try {
      save();
      planner_.commit();
    } catch (...) {
      planner_.forget();
      throw;
    }
  }

 private:
  void save() {
    Bytes proposal;
    agree(comm_, "describing the state dict", [&] {
      described_ = describe_state(state_, options_, comm_.rank());
      proposal = planner_.propose(plan_local_save(described_.shards, options_.flattened));
    });
    const std::vector<Bytes> proposals = comm_.gather(proposal, 0);
    std::vector<Bytes> assignments;
    agree(comm_, "planning the save", [&] {
      if (comm_.rank() == 0) assignments = assign(proposals);
    });
    const Bytes assignment = comm_.scatter(assignments, 0);
    WrittenItems written;
    agree(comm_, "writing the data files", [&] { written = write(decode_assignment(assignment)); });
    const std::vector<Bytes> results = comm_.gather(encode_written(written), 0);
    agree(comm_, "publishing the checkpoint", [&] {
      if (comm_.rank() == 0) publish(results);
    });
  }

  std::vector<Bytes> assign(const std::vector<Bytes>& proposals) {
    const std::vector<Bytes> answers = planner_.decide(proposals);
    publication_.emplace(Publication::begin(storage_, target_.name, staging_token(), {.overwrite = options_.overwrite, .sync = options_.io.fsync}));
    std::vector<Bytes> assignments;
    for (const Bytes& answer : answers) assignments.push_back(encode_assignment(publication_->staging(), answer));
    return assignments;
  }

  WrittenItems write(const Assignment& assignment) {
    const SavePlan& plan = planner_.accept(as_bytes(assignment.answer));
    StateSource source(std::move(described_.tensors), std::move(described_.object_bytes));
    return write_data_files(*storage_, assignment.staging, comm_.rank(), plan, source, options_.io, options_.separation_hint);
  }

  void publish(const std::vector<Bytes>& results) {
    std::vector<std::vector<Place>> places;
    std::vector<std::vector<std::string>> files;
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      WrittenItems written = with_context({.rank = static_cast<int>(rank)}, [&] { return decode_written(results[rank]); });
      places.push_back(std::move(written.places));
      files.push_back(std::move(written.files));
    }
    set_places(planner_.global_plan(), places, files);
    Metadata& metadata = planner_.global_plan().metadata;
    metadata.paths = std::move(described_.paths);
    metadata.storage_meta = StorageMeta{(target_.parent / target_.name).string(), random_id()};
    write_markers(*storage_, publication_->staging(), metadata,
                  {.compat = options_.compat, .common_file = std::move(described_.common_file), .integrity = options_.integrity, .fsync = options_.io.fsync});
    publication_->commit();
  }

  const StateDict& state_;
  const SaveOptions& options_;
  Communicator& comm_;
  SavePlanner& planner_;
  TargetPath target_;
  std::shared_ptr<Storage> storage_;
  DescribedState described_;
  std::optional<Publication> publication_;    // rank 0
};

}  // namespace

SavePlanner make_planner(const SaveOptions& options) {
  PlannerOptions planner = options.planner;
  planner.kind = planner_kind(options);
  return SavePlanner(planner, options.parallel.enabled);
}

void save(const StateDict& state, const std::filesystem::path& directory, const SaveOptions& options, Communicator& comm, SavePlanner& planner) {
  Saving(state, directory, options, comm, planner).run();
}

void save(const StateDict& state, const std::filesystem::path& directory, const SaveOptions& options, Communicator& comm) {
  SavePlanner planner = make_planner(options);
  save(state, directory, options, comm, planner);
}

void save(const StateDict& state, const std::filesystem::path& directory, const SaveOptions& options) {
  const auto alone = single_rank();
  save(state, directory, options, *alone);
}

}  // namespace dckpt
