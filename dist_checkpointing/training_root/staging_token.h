#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dckpt {

/// Returns a part of a name that is unique to this writer: host, boot of the kernel and PID
/// namespace, process, start time of the process, and a random number.
std::string staging_token();

// Containers may have the name of one host and processes of the same numbers. Another boot or
// another PID namespace therefore counts as another host. The tokens of earlier releases name
// neither: their processes may be found running, but never ended.

/// Returns whether the process that made a token is still running, as far as this host can tell:
/// false for tokens of other hosts, for text that is not a token, and for processes that have
/// ended, even if their process id has been reused.
bool made_by_running_process(std::string_view token);

/// Returns whether the token was made by a process of this host that has certainly ended. False for
/// tokens of other hosts, whose processes are not visible here.
bool made_by_ended_process(std::string_view token);

struct TokenOwner {
  std::string host;
  std::uint64_t process = 0;
};
/// Returns what a token tells people; empty for text that is not one.
std::optional<TokenOwner> owner_of(std::string_view token);

/// The begin of what a pool of workers, on any hosts, has in place of a token.
inline constexpr const char* kPoolToken = "workers-";
/// Returns whether this is the name of a hidden directory in which a pool of workers writes.
bool is_of_pool(std::string_view name);

/// Returns the name of the folder that a worker of a pool, by its token, has in a hidden directory.
std::string worker_folder(std::string_view token);
/// Returns the token in the name of such a folder; empty for other names.
std::string_view worker_of_folder(std::string_view name);

/// Returns a random identifier in the form that DCP's storage metadata uses (a UUID).
std::string random_id();

}  // namespace dckpt
