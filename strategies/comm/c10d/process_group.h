#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>

#include "strategies/comm/communicator.h"

namespace c10d {
class Backend;
}

namespace dckpt {

/// A Communicator over a process group that the trainer has made. The backend must carry CPU tensors point to point (Gloo, MPI; not NCCL); of a
/// c10d::ProcessGroup pass `group.getBackend(at::kCPU)`. It is kept alive. Messages have tags of their own, from 0x0dc00000 up, and do not mix with the trainer's
/// under other tags; make one Communicator per backend, on all its ranks.
///
/// split() makes no new process group: the ranks of a colour keep talking over this one, under a new tag.
/// A failure of the backend is CheckpointError (io) and names the first rank that was waited for in vain. Gloo closes its connections
/// when a wait times out: the process group itself is unusable then, too.
/// Throws CheckpointError (invalid argument) for a null backend or a timeout that is not positive.
std::unique_ptr<Communicator> c10d_communicator(const c10::intrusive_ptr<c10d::Backend>& backend, std::chrono::milliseconds timeout = std::chrono::minutes(10));

/// Connects the processes of a job over Gloo by what torchrun puts into the environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Rank 0
/// serves the port, unless torchrun's agent does (TORCHELASTIC_USE_AGENT_STORE=True). GLOO_SOCKET_IFNAME names a network interface; without it Gloo takes that of
/// the host name. Collective over all processes; connecting takes at most `timeout` per step.
/// Throws CheckpointError: (invalid argument) for a variable that is missing or malformed, (io) when the processes cannot be connected,
/// (unsupported) if dckpt was built without Gloo's headers.
std::unique_ptr<Communicator> gloo_from_environment(std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace dckpt
