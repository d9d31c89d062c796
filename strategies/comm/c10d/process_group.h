#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/comm/communicator.h"

namespace c10d {
class Backend;
}

namespace DCKPT_API dckpt {

/// Returns a Communicator over a process group of the trainer. The backend must support
/// point-to-point messages of CPU tensors (Gloo, MPI); for a c10d::ProcessGroup, pass
/// `group.getBackend(at::kCPU)`. It is kept alive. Messages use separate tags, from 0x0dc00000 up,
/// and do not mix with the trainer's messages under other tags. Make one Communicator per backend,
/// on all its ranks.
///
/// Ranks of one host that can share memory do so after their first message (shared_memory.h); the
/// backend then carries nothing between them. split() makes no new process group: the ranks of a
/// color communicate over this one, under a new tag. A failure of the backend throws
/// CheckpointError (unavailable) that names the first rank that did not respond. Gloo closes its
/// connections when a wait times out, so the process group itself is unusable then too. So that the
/// death of another rank is an error and does not end this process, SIGPIPE is ignored from here
/// on, as in every Python program, unless the trainer has set a handler; programs that it starts
/// inherit this. Throws CheckpointError
/// (invalid argument) for a null backend or a timeout that is not positive.
std::unique_ptr<Communicator> c10d_communicator(
    const c10::intrusive_ptr<c10d::Backend>& backend,
    std::chrono::milliseconds timeout = std::chrono::minutes(10));

/// Options for backends that only support device tensors, such as ProcessGroupNCCL.
struct DeviceTensors {
  c10::Device device;
  /// The device memory for data in transit, in bytes for each direction. At least 4 MiB. Longer
  /// buffers are sent in pieces.
  std::size_t staging = std::size_t{16} << 20;
  /// Makes a process group of some of the first backend's ranks (ascending, including this one), in
  /// their order. All of them call it. `name` is the same on all of them and unique to the group: a
  /// prefix for keys of the store. Without this function, split() of two or more ranks throws
  /// CheckpointError (unsupported), and so do background saves.
  std::function<c10::intrusive_ptr<c10d::Backend>(const std::vector<int>& ranks,
                                                  const std::string& name)>
      new_group{};
};

/// Returns a Communicator over a process group of device tensors. Buffers are staged through
/// tensors of the device, by copies in the thread's current stream; the messages of one exchange
/// are coalesced if the backend supports it. Such backends ignore tags: the process group must not
/// be used for anything else, and split() makes new ones. Where libnccl itself can be linked,
/// dckpt::nccl copies concurrently with training and with messages in transit. Throws
/// CheckpointError (invalid argument) for a null backend, too little staging, or a timeout that is
/// not positive.
std::unique_ptr<Communicator> c10d_communicator(
    const c10::intrusive_ptr<c10d::Backend>& backend, DeviceTensors how,
    std::chrono::milliseconds timeout = std::chrono::minutes(10));

/// Connects the processes of a job over Gloo, using torchrun's environment variables: RANK,
/// WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Rank 0 serves the port, unless torchrun's agent does
/// (TORCHELASTIC_USE_AGENT_STORE=True). GLOO_SOCKET_IFNAME names a network interface; without it
/// Gloo uses that of the host name. Collective over all processes; connecting takes at most
/// `timeout` per step. Throws CheckpointError: (invalid argument) for a missing or malformed
/// variable, (unavailable) when the processes cannot be connected, (unsupported) if dckpt was built
/// without Gloo's headers.
std::unique_ptr<Communicator> gloo_from_environment(
    std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace dckpt
