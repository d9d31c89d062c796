#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/strategies/comm/nccl/fake_machine.h"

using namespace dckpt::fake_nccl;

namespace {

struct Message {
  int peer;
  std::byte* bytes;
  std::size_t size;
  bool done = false;
};

/// Ranks with the same id, while one of them exists. Guarded by the mutex.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t size = 0;
  std::map<int, int> devices;  ///< devices of the ranks that came
  std::set<int> aborted;
  std::map<std::pair<int, int>, std::deque<Message*>> sends;  ///< key: from, to
};

/// State that outlives a handle while its work ends.
struct State {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int job_rank = 0;
  int device = 0;
  bool blocking = false;
  // The members below are guarded by the clique's mutex.
  ncclResult_t error = ncclSuccess;
  std::string text;
  bool aborted = false;
  int running = 0;
};

std::mutex cliques_mutex;
std::map<std::string, std::weak_ptr<Clique>> cliques;

ncclResult_t set_error(State& state, ncclResult_t error, std::string text) {
  state.error = error;
  state.text = std::move(text);
  return error;
}

/// Runs a group on the stream.
void move_messages(const std::shared_ptr<State>& state, std::vector<Message> sends,
                   std::vector<Message> receives) {
  Clique& clique = *state->clique;
  std::unique_lock lock(clique.mutex);
  {
    const std::scoped_lock machine_lock(machine.mutex);
    if (const auto broken = machine.broken.extract(state->job_rank))
      set_error(*state, ncclSystemError, broken.mapped());
  }
  for (Message& message : sends) {
    if (state->error == ncclSuccess) clique.sends[{state->rank, message.peer}].push_back(&message);
  }
  clique.changed.notify_all();
  while (!state->aborted &&
         state->error ==
             ncclSuccess) {  // after an error it stays on the device until it is aborted
    bool all = true;
    bool moved = false;
    for (Message& message : receives) {
      if (message.done) continue;
      auto& offered = clique.sends[{message.peer, state->rank}];
      if (offered.empty()) {
        all = false;
        if (clique.aborted.contains(message.peer)) set_error(*state, ncclRemoteError, "");
        continue;
      }
      if (offered.front()->size != message.size)
        note_misuse("a message of " + std::to_string(offered.front()->size) +
                    " bytes meets a receive of " + std::to_string(message.size));
      std::memcpy(message.bytes, offered.front()->bytes,
                  std::min(message.size, offered.front()->size));
      message.done = offered.front()->done = moved = true;
      offered.pop_front();
    }
    for (const Message& message : sends) {
      if (message.done) continue;
      all = false;
      if (clique.aborted.contains(message.peer)) set_error(*state, ncclRemoteError, "");
    }
    if (all) break;
    if (moved)
      clique.changed.notify_all();
    else if (state->error == ncclSuccess)
      clique.changed.wait(lock);
  }
  clique.changed.wait(lock, [&] { return state->aborted || state->error == ncclSuccess; });
  for (Message& message : sends) std::erase(clique.sends[{state->rank, message.peer}], &message);
  --state->running;
  clique.changed.notify_all();
}

}  // namespace

struct ncclComm {
  std::shared_ptr<State> state;
  bool joined = false;
  bool finalized = false;
  std::vector<Message> sends;  ///< sends of the open group
  std::vector<Message> receives;
  cudaStream_t stream = nullptr;
  int polls_before_launch = 0;

  bool in_progress() const { return !joined || polls_before_launch > 0; }

  void launch() {
    {
      const std::scoped_lock lock(state->clique->mutex);
      ++state->running;
    }
    stream->enqueue([kept = state, out = std::exchange(sends, {}),
                     in = std::exchange(receives, {})] { move_messages(kept, out, in); });
    stream = nullptr;
  }
};

namespace {

thread_local bool in_group = false;
thread_local std::vector<ncclComm_t> group_comms;

ncclResult_t post(const char* function, ncclComm_t comm, cudaStream_t stream,
                  std::vector<Message> ncclComm::*list, const void* bytes, std::size_t size,
                  int peer) {
  if (!in_group) note_misuse(std::string(function) + " outside a group");
  if (comm->in_progress())
    note_misuse(std::string(function) + " with a communicator that is in progress");
  if (comm->finalized || (comm->stream != nullptr && comm->stream != stream))
    note_misuse(std::string(function) + " after the end, or on two streams");
  if (place_of(bytes, size) != comm->state->device || size == 0)
    note_misuse(std::string(function) + " of memory of another device, or of nothing");
  if (fails(function)) {
    const std::scoped_lock lock(comm->state->clique->mutex);
    comm->state->text = "no more sockets";
    return ncclSystemError;
  }
  if (peer < 0 || peer >= static_cast<int>(comm->state->clique->size) || peer == comm->state->rank)
    return ncclInvalidArgument;
  (comm->*list).push_back({peer, static_cast<std::byte*>(const_cast<void*>(bytes)), size});
  comm->stream = stream;
  if (std::ranges::find(group_comms, comm) == group_comms.end()) group_comms.push_back(comm);
  return ncclSuccess;
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInvalidUsage: return "invalid usage";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "invalid argument";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  text.clear();
  if (comm != nullptr) {
    const std::scoped_lock lock(comm->state->clique->mutex);
    text = comm->state->text;
  }
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (fails("ncclGetUniqueId")) return ncclSystemError;
  *id = {};
  const std::scoped_lock lock(machine.mutex);
  const std::string text = "id " + std::to_string(machine.ids++);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (fails("ncclCommInitRankConfig")) return ncclSystemError;
  std::shared_ptr<Clique> clique;
  {
    const std::scoped_lock lock(cliques_mutex);
    std::weak_ptr<Clique>& known = cliques[std::string(id.internal, sizeof id.internal)];
    clique = known.lock();
    if (!clique) known = clique = std::make_shared<Clique>();
  }
  const auto state = std::make_shared<State>(State{.clique = clique,
                                                   .rank = rank,
                                                   .job_rank = this_rank,
                                                   .device = this_device,
                                                   .blocking = config->blocking != 0});
  std::unique_lock lock(clique->mutex);
  clique->size = static_cast<std::size_t>(size);
  for (const auto& [other, device] : clique->devices) {
    if (other == rank || device == this_device) return ncclInvalidUsage;
  }
  clique->devices[rank] = this_device;
  clique->changed.notify_all();
  *made = new ncclComm{.state = state};
  {
    const std::scoped_lock machine_lock(machine.mutex);
    ++machine.comms;
  }
  if (!state->blocking) return ncclInProgress;
  clique->changed.wait(lock, [&] { return clique->devices.size() == clique->size; });
  (*made)->joined = true;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  if (fails("ncclCommCount")) return ncclSystemError;
  *count = static_cast<int>(comm->state->clique->size);
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  if (fails("ncclCommUserRank")) return ncclSystemError;
  *rank = comm->state->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  if (fails("ncclCommCuDevice")) return ncclSystemError;
  *device = comm->state->device;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  if (fails("ncclCommGetAsyncError")) return ncclSystemError;
  if (comm->joined && comm->polls_before_launch > 0 && --comm->polls_before_launch == 0)
    comm->launch();
  const std::scoped_lock lock(comm->state->clique->mutex);
  comm->joined = comm->joined || comm->state->clique->devices.size() == comm->state->clique->size;
  if (!comm->joined && !comm->state->clique->aborted.empty())
    set_error(*comm->state, ncclRemoteError, "");
  *result = comm->state->error != ncclSuccess ? comm->state->error
            : comm->in_progress() || (comm->finalized && comm->state->running > 0) ? ncclInProgress
                                                                                   : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  if (fails("ncclGroupStart")) return ncclSystemError;
  if (in_group) note_misuse("ncclGroupStart inside a group");
  in_group = true;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (!in_group) note_misuse("ncclGroupEnd outside a group");
  in_group = false;
  const bool fault = fails("ncclGroupEnd");
  ncclResult_t result = ncclSuccess;
  for (const ncclComm_t comm : std::exchange(group_comms, {})) {
    if (fault) {
      comm->sends.clear();
      comm->receives.clear();
    } else if (comm->state->blocking) {
      comm->launch();
    } else {
      comm->polls_before_launch = 3;
      result = ncclInProgress;
    }
  }
  return fault ? ncclSystemError : result;
}

ncclResult_t ncclSend(const void* bytes, std::size_t size, ncclDataType_t, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return post("ncclSend", comm, stream, &ncclComm::sends, bytes, size, peer);
}

ncclResult_t ncclRecv(void* bytes, std::size_t size, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post("ncclRecv", comm, stream, &ncclComm::receives, bytes, size, peer);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (fails("ncclCommFinalize")) return ncclSystemError;
  comm->finalized = true;
  if (!comm->state->blocking) return ncclInProgress;
  std::unique_lock lock(comm->state->clique->mutex);
  comm->state->clique->changed.wait(lock, [&] { return comm->state->running == 0; });
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  {
    const std::scoped_lock lock(comm->state->clique->mutex, machine.mutex);
    if ((!comm->finalized || comm->state->running > 0) && machine.misuse.empty())
      machine.misuse = "ncclCommDestroy before the end";
    --machine.comms;
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    std::unique_lock lock(comm->state->clique->mutex);
    comm->state->aborted = true;
    comm->state->clique->aborted.insert(comm->state->rank);
    comm->state->clique->changed.notify_all();
    comm->state->clique->changed.wait(lock, [&] { return comm->state->running == 0; });
  }
  {
    const std::scoped_lock lock(machine.mutex);
    --machine.comms;
  }
  delete comm;
  return ncclSuccess;
}

}  // extern "C"
