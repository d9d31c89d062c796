#include "strategies/comm/sockets/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "mapping/base/error.h"

namespace dckpt::sockets {
namespace {

// Ranks of a large job connect at about the same time.
constexpr int kBacklog = 4096;

std::string reason(int error) {
  return std::strerror(error);
}

const sockaddr* as_sockaddr(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

/// Messages are sent whole, so waiting for more to send only delays them.
void send_at_once(const posix::Fd& socket, int family) {
  const int on = 1;
  if (family != AF_UNIX) ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/// Lets this process open as many files as its hard limit allows.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

posix::Fd make_socket(int family) {
  const auto make = [&] {
    return posix::Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  };
  posix::Fd socket = make();
  if (!socket && errno == EMFILE) {
    raise_file_limit();
    socket = make();
  }
  return socket;
}

template <typename Call>
Moved moved(Call&& call) {
  while (true) {
    const ssize_t count = call();
    if (count > 0) return {static_cast<std::size_t>(count), false};
    if (count == 0) return {0, true};
    if (errno == EINTR) continue;
    return {0, errno != EAGAIN && errno != EWOULDBLOCK};
  }
}

}  // namespace

std::string Address::text() const {
  if (length == 0) return "an unknown address";
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &in.sin_addr, host.data(), host.size());
    return str_format("{}:{}", host.data(), ntohs(in.sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    ::inet_ntop(AF_INET6, &in.sin6_addr, host.data(), host.size());
    return str_format("[{}]:{}", host.data(), ntohs(in.sin6_port));
  }
  const auto& un = reinterpret_cast<const sockaddr_un&>(storage);
  return {un.sun_path, ::strnlen(un.sun_path, sizeof(un.sun_path))};
}

Address Address::at_port(std::uint16_t port) const {
  Address other = *this;
  if (storage.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(other.storage).sin_port = htons(port);
  if (storage.ss_family == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(other.storage).sin6_port = htons(port);
  return other;
}

std::vector<Address> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (error != 0) {
    throw_error(ErrorCode::kUnavailable, "cannot resolve the host name {}: {}", quote(host),
                error == EAI_SYSTEM ? reason(errno) : ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(first, &::freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
    Address address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

std::optional<Address> parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  const std::optional<std::uint64_t> port = parse_u64(text.substr(colon + 1));
  if (!port || *port > 65535) return std::nullopt;
  Address address;
  auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& in6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &in.sin_addr) == 1) {
    in.sin_family = AF_INET;
    address.length = sizeof(in);
  } else if (::inet_pton(AF_INET6, host.c_str(), &in6.sin6_addr) == 1) {
    in6.sin6_family = AF_INET6;
    address.length = sizeof(in6);
  } else {
    return std::nullopt;
  }
  return address.at_port(static_cast<std::uint16_t>(*port));
}

std::optional<Address> in_directory(const posix::Fd& directory, const std::string& name) {
  Address address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  const std::string path = str_format("/proc/self/fd/{}/{}", directory.get(), name);
  if (name.empty() || name.find('/') != name.npos || path.size() >= sizeof(un.sun_path))
    return std::nullopt;
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path, path.c_str(), path.size() + 1);
  address.length = sizeof(un);
  return address;
}

posix::Fd listen_at(const Address& address) {
  posix::Fd socket = make_socket(address.storage.ss_family);
  const int on = 1;
  if (address.storage.ss_family != AF_UNIX && socket)  // ports of connections that have just ended
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool waits = socket && ::bind(socket.get(), as_sockaddr(address), address.length) == 0 &&
                     ::listen(socket.get(), kBacklog) == 0;
  if (!waits) {
    const int error = errno;
    throw_error(error == EADDRINUSE ? ErrorCode::kAlreadyExists : ErrorCode::kIo,
                "cannot wait for connections at {}: {}", address.text(), reason(error));
  }
  return socket;
}

posix::Fd accept_from(const posix::Fd& listener) {
  for (bool again = true;;) {
    posix::Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      send_at_once(socket, local_address(socket).storage.ss_family);
      return socket;
    }
    if (errno == EMFILE && again) {
      raise_file_limit();
      again = false;
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      throw_error(ErrorCode::kIo,
                  "cannot accept the connection of another rank: {}; a rank needs a file for "
                  "each rank that it exchanges messages with (ulimit -n)",
                  reason(errno));
    }
    // Some connections have gone before they were taken; others may wait behind them.
    if (errno != EINTR && errno != ECONNABORTED) return {};
  }
}

posix::Fd connect_to(const Address& address) {
  posix::Fd socket = make_socket(address.storage.ss_family);
  if (!socket) return {};
  send_at_once(socket, address.storage.ss_family);
  if (::connect(socket.get(), as_sockaddr(address), address.length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    const int error = errno;
    socket = {};
    errno = error;
  } else if (local_address(socket).text() == address.text()) {
    // Nobody waits at this port, which the system has chosen for this end, too.
    socket = {};
    errno = ECONNREFUSED;
  }
  return socket;
}

int error_of(const posix::Fd& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

Address local_address(const posix::Fd& socket) {
  Address address;
  address.length = sizeof(address.storage);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) !=
      0)
    address.length = 0;
  return address;
}

Moved send_some(const posix::Fd& socket, ByteView bytes) {
  return send_some(socket, bytes, {});
}

Moved send_some(const posix::Fd& socket, ByteView first, ByteView second) {
  const std::array<iovec, 2> parts = {iovec{const_cast<std::byte*>(first.data()), first.size()},
                                      iovec{const_cast<std::byte*>(second.data()), second.size()}};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = second.empty() ? 1 : 2;
  return moved([&] { return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL); });
}

Moved receive_some(const posix::Fd& socket, MutableByteView bytes) {
  return moved([&] { return ::recv(socket.get(), bytes.data(), bytes.size(), 0); });
}

}  // namespace dckpt::sockets
