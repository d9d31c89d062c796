#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "strategies/comm/sockets/socket_communicator.h"

namespace dckpt::sockets {

/// Returns the value of an environment variable, or null.
using Variables = std::function<const char*(const char* name)>;

/// See job_from_environment().
JobPlace job_place(const Variables& variables);

/// Returns the first host of a list as SLURM writes it: "gpu007" of "gpu[007-012,14],login". Empty
/// if it has none.
std::string first_host(std::string_view list);

}  // namespace dckpt::sockets
