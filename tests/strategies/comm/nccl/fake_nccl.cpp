#include "tests/strategies/comm/nccl/fake_nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

// ---- the machine

namespace {

struct Allocation {
  std::size_t size;
  int device;  ///< -1: page-locked memory of the host
};

struct Fault {
  std::string function;
  int rank = -1;
  int calls_left = 0;
  bool fired = false;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 0;
  std::set<int> contexts;
  std::map<const std::byte*, Allocation> memory;
  std::set<cudaStream_t> streams;
  int events = 0;
  int comms = 0;
  Fault fault;
  std::map<int, std::string> broken;
  std::string misuse;
  int ids = 0;
};

Machine machine;
thread_local int this_rank = -1;
thread_local int this_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

void note_misuse(const std::string& text) {
  const std::scoped_lock lock(machine.mutex);
  if (machine.misuse.empty()) machine.misuse = text;
}

bool fails(const char* function) {
  const std::scoped_lock lock(machine.mutex);
  Fault& fault = machine.fault;
  if (fault.rank != this_rank || fault.function != function || --fault.calls_left != 0) return false;
  return fault.fired = true;
}

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

/// Runs the body unless the fault of the function is due.
template <typename Body>
cudaError_t cuda_call(const char* function, cudaError_t fault, Body&& body) {
  if (capture_mode != cudaStreamCaptureModeRelaxed) note_misuse(std::string(function) + " would break a graph that another thread captures");
  if (fails(function)) return report(fault);
  return report(body());
}

cudaError_t allocate(void** memory, std::size_t size, int device) {
  auto* bytes = new (std::nothrow) std::byte[size];
  if (bytes == nullptr) return cudaErrorMemoryAllocation;
  *memory = bytes;
  const std::scoped_lock lock(machine.mutex);
  machine.memory[bytes] = {size, device};
  return cudaSuccess;
}

}  // namespace

struct CUstream_st {
  int device;
  std::deque<std::function<void()>> work;  ///< guarded by the machine's mutex, as `busy`
  bool busy = false;
  std::jthread worker{[this](const std::stop_token& stop) { run(stop); }};

  void run(const std::stop_token& stop) {
    std::unique_lock lock(machine.mutex);
    while (true) {
      machine.changed.wait(lock, [&] { return stop.stop_requested() || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      next();
      lock.lock();
      busy = false;
      machine.changed.notify_all();
    }
  }

  void enqueue(std::function<void()> next) {
    const std::scoped_lock lock(machine.mutex);
    work.push_back(std::move(next));
    machine.changed.notify_all();
  }
};

struct CUevent_st {
  std::shared_ptr<bool> done = std::make_shared<bool>(true);  ///< guarded by the machine's mutex
};

namespace {

void wait_idle(int device) {
  std::unique_lock lock(machine.mutex);
  machine.changed.wait(lock, [device] { return std::ranges::none_of(machine.streams, [&](cudaStream_t stream) { return stream->device == device && (stream->busy || !stream->work.empty()); }); });
}

cudaError_t release(void* memory) {
  wait_idle(this_device);
  const auto* bytes = static_cast<const std::byte*>(memory);
  {
    const std::scoped_lock lock(machine.mutex);
    if (machine.memory.erase(bytes) == 0) return cudaErrorInvalidValue;
  }
  delete[] bytes;
  return cudaSuccess;
}

/// The device that holds all of these bytes, -1 for page-locked memory, -2 for anything else.
int place_of(const void* memory, std::size_t size) {
  const std::scoped_lock lock(machine.mutex);
  const auto* bytes = static_cast<const std::byte*>(memory);
  auto found = machine.memory.upper_bound(bytes);
  if (found == machine.memory.begin()) return -2;
  --found;
  return bytes + size <= found->first + found->second.size ? found->second.device : -2;
}

int primary_context_state(int device, unsigned int* flags, int* active) {
  *flags = 0;
  *active = dckpt::fake_nccl::contexts().contains(device) ? 1 : 0;
  return 0;
}

}  // namespace

// ---- CUDA runtime

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  if (fails("cudaGetDevice")) return report(cudaErrorUnknown);
  *device = this_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (fails("cudaSetDevice")) return report(cudaErrorUnknown);
  const std::scoped_lock lock(machine.mutex);
  if (device < 0 || device >= machine.devices) return report(cudaErrorInvalidDevice);
  machine.contexts.insert(device);
  this_device = device;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult* found) {
  if (fails("cudaGetDriverEntryPointByVersion")) return report(cudaErrorUnknown);
  if (std::strcmp(symbol, "cuDevicePrimaryCtxGetState") != 0) return report(cudaErrorInvalidValue);
  *function = reinterpret_cast<void*>(&primary_context_state);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : error == cudaErrorInvalidDevice ? "invalid device ordinal" : "unknown error"; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : error == cudaErrorInvalidDevice ? "cudaErrorInvalidDevice" : "cudaErrorUnknown";
}

cudaError_t cudaMalloc(void** memory, std::size_t size) {
  return cuda_call("cudaMalloc", cudaErrorMemoryAllocation, [&] { return allocate(memory, size, this_device); });
}

cudaError_t cudaHostAlloc(void** memory, std::size_t size, unsigned int) {
  return cuda_call("cudaHostAlloc", cudaErrorMemoryAllocation, [&] { return allocate(memory, size, -1); });
}

cudaError_t cudaFree(void* memory) { return release(memory); }
cudaError_t cudaFreeHost(void* memory) { return release(memory); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  return cuda_call("cudaStreamCreateWithFlags", cudaErrorUnknown, [&] {
    *stream = new CUstream_st{.device = this_device};
    const std::scoped_lock lock(machine.mutex);
    machine.streams.insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  wait_idle(stream->device);
  {
    const std::scoped_lock lock(machine.mutex);
    machine.streams.erase(stream);
    stream->worker.request_stop();
    machine.changed.notify_all();
  }
  stream->worker.join();
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  return cuda_call("cudaEventCreateWithFlags", cudaErrorUnknown, [&] {
    *event = new CUevent_st;
    const std::scoped_lock lock(machine.mutex);
    ++machine.events;
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::scoped_lock lock(machine.mutex);
  --machine.events;
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cuda_call("cudaEventRecord", cudaErrorUnknown, [&] {
    {
      const std::scoped_lock lock(machine.mutex);
      event->done = std::make_shared<bool>(false);
    }
    stream->enqueue([done = event->done] {
      const std::scoped_lock lock(machine.mutex);
      *done = true;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return cuda_call("cudaEventQuery", cudaErrorUnknown, [&] {
    const std::scoped_lock lock(machine.mutex);
    return *event->done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  return cuda_call("cudaMemcpyAsync", cudaErrorUnknown, [&] {
    const int source = place_of(from, size);
    const int destination = place_of(to, size);
    const bool right = kind == cudaMemcpyHostToDevice ? source == -1 && destination == this_device : kind == cudaMemcpyDeviceToHost && source == this_device && destination == -1;
    if (!right) note_misuse("cudaMemcpyAsync between the wrong kinds of memory");
    stream->enqueue([=] { std::memcpy(to, from, size); });
    return cudaSuccess;
  });
}

}  // extern "C"

// ---- NCCL

namespace {

struct Message {
  int peer;
  std::byte* bytes;
  std::size_t size;
  bool done = false;
};

/// Ranks with the same id, while one of them is there. Guarded by the mutex.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t size = 0;
  std::map<int, int> devices;                                 ///< of the ranks that came
  std::set<int> aborted;
  std::map<std::pair<int, int>, std::deque<Message*>> sends;  ///< from, to
};

/// What outlives a handle while its work ends.
struct State {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int job_rank = 0;
  int device = 0;
  bool blocking = false;
  // Guarded by the clique's mutex.
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

/// A group on the stream.
void move_messages(const std::shared_ptr<State>& state, std::vector<Message> sends, std::vector<Message> receives) {
  Clique& clique = *state->clique;
  std::unique_lock lock(clique.mutex);
  {
    const std::scoped_lock machine_lock(machine.mutex);
    if (const auto broken = machine.broken.extract(state->job_rank)) set_error(*state, ncclSystemError, broken.mapped());
  }
  for (Message& message : sends) {
    if (state->error == ncclSuccess) clique.sends[{state->rank, message.peer}].push_back(&message);
  }
  clique.changed.notify_all();
  while (!state->aborted && state->error == ncclSuccess) {  // after an error it stays on the device until it is aborted
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
      if (offered.front()->size != message.size) note_misuse("a message of " + std::to_string(offered.front()->size) + " bytes meets a receive of " + std::to_string(message.size));
      std::memcpy(message.bytes, offered.front()->bytes, std::min(message.size, offered.front()->size));
      message.done = offered.front()->done = moved = true;
      offered.pop_front();
    }
    for (const Message& message : sends) {
      if (message.done) continue;
      all = false;
      if (clique.aborted.contains(message.peer)) set_error(*state, ncclRemoteError, "");
    }
    if (all) break;
    if (moved) clique.changed.notify_all();
    else if (state->error == ncclSuccess) clique.changed.wait(lock);
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
  std::vector<Message> sends;     ///< of the open group
  std::vector<Message> receives;
  cudaStream_t stream = nullptr;
  int polls_before_launch = 0;

  bool in_progress() const { return !joined || polls_before_launch > 0; }

  void launch() {
    {
      const std::scoped_lock lock(state->clique->mutex);
      ++state->running;
    }
    stream->enqueue([kept = state, out = std::exchange(sends, {}), in = std::exchange(receives, {})] { move_messages(kept, out, in); });
    stream = nullptr;
  }
};

namespace {

thread_local bool in_group = false;
thread_local std::vector<ncclComm_t> group_comms;

ncclResult_t post(const char* function, ncclComm_t comm, cudaStream_t stream, std::vector<Message> ncclComm::* list, const void* bytes, std::size_t size, int peer) {
  if (!in_group) note_misuse(std::string(function) + " outside a group");
  if (comm->in_progress()) note_misuse(std::string(function) + " with a communicator that is in progress");
  if (comm->finalized || (comm->stream != nullptr && comm->stream != stream)) note_misuse(std::string(function) + " after the end, or on two streams");
  if (place_of(bytes, size) != comm->state->device || size == 0) note_misuse(std::string(function) + " of memory of another device, or of nothing");
  if (fails(function)) {
    const std::scoped_lock lock(comm->state->clique->mutex);
    comm->state->text = "no more sockets";
    return ncclSystemError;
  }
  if (peer < 0 || peer >= static_cast<int>(comm->state->clique->size) || peer == comm->state->rank) return ncclInvalidArgument;
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

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (fails("ncclCommInitRankConfig")) return ncclSystemError;
  std::shared_ptr<Clique> clique;
  {
    const std::scoped_lock lock(cliques_mutex);
    std::weak_ptr<Clique>& known = cliques[std::string(id.internal, sizeof id.internal)];
    clique = known.lock();
    if (!clique) known = clique = std::make_shared<Clique>();
  }
  const auto state = std::make_shared<State>(State{.clique = clique, .rank = rank, .job_rank = this_rank, .device = this_device, .blocking = config->blocking != 0});
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
  if (comm->joined && comm->polls_before_launch > 0 && --comm->polls_before_launch == 0) comm->launch();
  const std::scoped_lock lock(comm->state->clique->mutex);
  comm->joined = comm->joined || comm->state->clique->devices.size() == comm->state->clique->size;
  if (!comm->joined && !comm->state->clique->aborted.empty()) set_error(*comm->state, ncclRemoteError, "");
  *result = comm->state->error != ncclSuccess ? comm->state->error : comm->in_progress() || (comm->finalized && comm->state->running > 0) ? ncclInProgress : ncclSuccess;
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

ncclResult_t ncclSend(const void* bytes, std::size_t size, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  return post("ncclSend", comm, stream, &ncclComm::sends, bytes, size, peer);
}

ncclResult_t ncclRecv(void* bytes, std::size_t size, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
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
    if ((!comm->finalized || comm->state->running > 0) && machine.misuse.empty()) machine.misuse = "ncclCommDestroy before the end";
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

// ---- for tests

namespace dckpt::fake_nccl {

void reset(int devices) {
  const std::scoped_lock lock(machine.mutex);
  machine.devices = devices;
  machine.contexts.clear();
  machine.fault = {};
  machine.broken.clear();
  machine.misuse.clear();
}

void bind_thread(int rank) { this_rank = rank; }

void fail(int rank, const std::string& function, int call) {
  const std::scoped_lock lock(machine.mutex);
  machine.fault = {function, rank, call};
}

bool has_failed() {
  const std::scoped_lock lock(machine.mutex);
  return machine.fault.fired;
}

void break_link(int rank, const std::string& text) {
  const std::scoped_lock lock(machine.mutex);
  machine.broken[rank] = text;
}

std::string left_over() {
  const std::scoped_lock lock(machine.mutex);
  std::string text;
  const auto add = [&](std::size_t count, const char* what) { text += count == 0 ? "" : std::to_string(count) + " " + what + "; "; };
  add(machine.memory.size(), "pieces of memory");
  add(machine.streams.size(), "streams");
  add(static_cast<std::size_t>(machine.events), "events");
  add(static_cast<std::size_t>(machine.comms), "communicators");
  return text;
}

std::string misuse() {
  const std::scoped_lock lock(machine.mutex);
  return machine.misuse;
}

std::set<int> contexts() {
  const std::scoped_lock lock(machine.mutex);
  return machine.contexts;
}

}  // namespace dckpt::fake_nccl
