#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mapping/base/file_descriptor.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/sockets/handshake.h"
#include "strategies/comm/sockets/socket.h"

// The rendezvous, at which the ranks of a job find each other.
//
// Rank 0 waits for connections at the rendezvous, and at nothing else: at the given address of its
// host, or in the given folder. Each other rank connects there, again and again until its deadline,
// and says hello: the token of the job, its rank, the size, and the address at which it listens for
// the connections of the ranks that it will exchange messages with. That address is at the one
// network interface by which the rank reaches rank 0. Once all have come, rank 0 answers all of
// them with the addresses of all and a random key, which the ranks show to each other; then these
// connections end. Ranks connect to each other only when they first exchange a message.
//
//   a stranger (other bytes, none, too many)    is dropped; the ranks do not learn of it
//   another version with another token          is a stranger
//   a rank with another token                   is refused; the others go on waiting
//   another version or size, a rank twice,      all ranks that have come get the same error; those
//   a rank outside of the size                  that come later find nobody until their deadline
//   a rank that ends before all have come       is forgotten: it may come again
//   a rank that does not come                   all ranks get an error that names it, at the
//                                               deadline of rank 0
namespace dckpt::sockets {

/// The meeting place: a port of rank 0's host, or a folder on the one host of all ranks.
struct Rendezvous {
  std::string host{};
  std::uint16_t port = 0;
  std::string folder{};  ///< if not empty, there is no host

  std::string text() const;
};

/// Parses "host:port", "[::1]:port", or a path with a slash. Throws CheckpointError (invalid
/// argument).
Rendezvous parse_rendezvous(const std::string& text);

/// A socket at which a rank waits for the connections of others, and what it takes to connect.
class Doorstep {
 public:
  /// Waits at another port of the same host, or in the same folder. Throws CheckpointError (io).
  static Doorstep beside(const Address& address);
  static Doorstep in_folder(std::shared_ptr<const posix::Fd> folder);

  Doorstep(Doorstep&&) noexcept = default;
  Doorstep& operator=(Doorstep&&) noexcept = default;
  ~Doorstep();

  const posix::Fd& socket() const noexcept { return socket_; }
  /// The name by which other ranks reach it: see Answer::addresses.
  const std::string& name() const noexcept { return name_; }
  /// Returns the address of another rank by the name of its own doorstep. Throws CheckpointError
  /// (corrupt).
  Address address_of(const std::string& name) const;
  /// Returns another doorstep at the same place.
  Doorstep another() const;

 private:
  Doorstep() = default;

  posix::Fd socket_{};
  std::string name_{};
  std::shared_ptr<const posix::Fd> folder_{};  ///< null: TCP
  Address address_{};
};

/// The result of a rendezvous, the same on all ranks but for their doorsteps.
struct Meeting {
  Doorstep doorstep;
  JobKey key{};
  std::vector<std::string> names{};  ///< the doorsteps' names, indexed by rank
};

/// Waits until all ranks have come. Throws CheckpointError as described above.
Meeting meet(const Rendezvous& rendezvous, int rank, int size, const std::string& token,
             const Deadline& deadline);

/// Returns a random key.
JobKey make_key();

}  // namespace dckpt::sockets
