#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/file_descriptor.h"

// Sockets of TCP and of the Unix domain, all of them non-blocking. Internal; not installed.
namespace dckpt::sockets {

/// The address of one end of a connection.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  /// Returns "10.0.0.3:29500", "[fe80::1]:29500" or the path of a Unix socket.
  std::string text() const;
  /// Returns the same address at another port; 0: at one that the system chooses.
  Address at_port(std::uint16_t port) const;
};

/// Returns the addresses of a host, in the order in which they should be tried. Throws
/// CheckpointError (unavailable) if the name cannot be resolved.
std::vector<Address> resolve(const std::string& host, std::uint16_t port);
/// Parses what Address::text() returns of a TCP address.
std::optional<Address> parse_address(const std::string& text);
/// Returns the address of a Unix socket in an open directory, which must stay open while it is
/// used: paths of sockets are short, and those of directories need not be.
std::optional<Address> in_directory(const posix::Fd& directory, const std::string& name);

/// Returns a socket that waits for connections at this address. Throws CheckpointError (io), or
/// (already exists) if another socket has the address.
posix::Fd listen_at(const Address& address);
/// Returns the next waiting connection; none: an empty one. Throws CheckpointError (io) if this
/// process may not open more files.
posix::Fd accept_from(const posix::Fd& listener);
/// Begins to connect. Returns an empty one, with the reason in `errno`, if that fails at once; else
/// the socket becomes writable when it is connected or has failed (error_of).
posix::Fd connect_to(const Address& address);
/// Returns the error number that a socket has met; 0: none.
int error_of(const posix::Fd& socket);
/// Returns the address of this end of a connection.
Address local_address(const posix::Fd& socket);

/// The result of one attempt to move bytes. Their number may be 0.
struct Moved {
  std::size_t bytes = 0;
  bool ended = false;  ///< the other side has closed the connection, or it is lost
};
Moved send_some(const posix::Fd& socket, ByteView bytes);
/// Sends two buffers one after the other, in one packet where they fit.
Moved send_some(const posix::Fd& socket, ByteView first, ByteView second);
Moved receive_some(const posix::Fd& socket, MutableByteView bytes);

}  // namespace dckpt::sockets
