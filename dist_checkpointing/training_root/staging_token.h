#pragma once

#include <string>
#include <string_view>

namespace dckpt {

/// A name part that no other writer uses: host, process, when the process was started, and a random
/// number.
std::string staging_token();

/// Whether the process that made a token still runs, as far as this host can tell: false for tokens
/// of other hosts, for text that is no token, and for processes that have ended, even if another
/// one has got their number.
bool made_by_running_process(std::string_view token);

/// Whether a process of this host made a token and has ended. False for tokens of other hosts,
/// whose processes nobody can see here.
bool made_by_ended_process(std::string_view token);

/// A random identifier as DCP's storage metadata keep it (the form of a UUID).
std::string random_id();

}  // namespace dckpt
