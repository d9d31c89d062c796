#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "mapping/base/api.h"
#include "strategies/comm/communicator.h"

namespace DCKPT_API dckpt {

struct SocketOptions {
  /// Time for all ranks to come, and for each operation afterwards; must be positive.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// A secret that all ranks of the job have, at most 256 bytes. Processes without it are not
  /// admitted. It travels unencrypted, as all messages do: it keeps out other jobs and strangers,
  /// but not those who can listen to the network.
  std::string token{};
  /// Ranks of one host exchange messages through shared memory (with_shared_memory).
  bool shared_memory = true;
};

/// Connects the ranks of a job over sockets; nothing else is needed to save and load with several
/// processes. All ranks call this with the same `rendezvous`, size and token, in any order.
///
/// `rendezvous` is "HOST:PORT", an address of the host of rank 0 and a port that is free there; or
/// the path of an existing folder ("/run/job-12/"), with a slash in it, if all ranks are on one
/// host. Rank 0 listens at that address only, and each other rank at the address by which it
/// reaches rank 0, at a port that the system chooses. Ranks connect when they first exchange a
/// message, so a rank has as many files open as it has such partners; if they are more than the
/// soft limit of the process, that is raised up to the hard limit.
///
/// A rank may be a process or a thread: each calls this with a rank of its own.
///
/// Throws CheckpointError, all ranks the same: (unavailable) if ranks do not come in time, which it
/// names; (invalid argument) if ranks come twice or with another size; a rank with another token
/// gets an error alone, and the others wait for the right one.
[[nodiscard]] std::unique_ptr<Communicator> socket_communicator(const std::string& rendezvous,
                                                                int rank, int size,
                                                                const SocketOptions& options = {});

/// The place of a process in its job, as launchers tell it.
struct JobPlace {
  std::string rendezvous{};  ///< empty if the launcher names no host of rank 0
  int rank = 0;
  int size = 1;
};

/// Reads the environment variables of this process. The rank and the size come from the first pair
/// of variables that is set: RANK and WORLD_SIZE (torchrun and many others), OMPI_COMM_WORLD_RANK
/// and OMPI_COMM_WORLD_SIZE, PMI_RANK and PMI_SIZE, SLURM_PROCID and SLURM_STEP_NUM_TASKS.
///
/// The rendezvous is DCKPT_RENDEZVOUS if set; else MASTER_ADDR with MASTER_PORT, or the port after
/// it under torchrun, whose agent uses MASTER_PORT itself; else, under SLURM, the first host of
/// SLURM_STEP_NODELIST with a port from 20000 to 29999 that the job's and step's numbers choose.
///
/// Throws CheckpointError (invalid argument) if there is none, or one has no meaning.
JobPlace job_from_environment();

/// Connects the ranks of job_from_environment(); a single rank without a rendezvous is
/// single_rank(). Without a token in `options`, that is DCKPT_TOKEN.
[[nodiscard]] std::unique_ptr<Communicator> sockets_from_environment(SocketOptions options = {});

}  // namespace dckpt
