#include "strategies/comm/sockets/rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/ranks_text.h"

namespace dckpt::sockets {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kShortestPause{5};
constexpr milliseconds kLongestPause{500};
constexpr milliseconds kLongestConnect{5'000};
constexpr int kMostAttempts = 200;  // to lock a folder
constexpr const char* kDoor = "rendezvous.sock";

milliseconds left(Clock::time_point until) {
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(until - Clock::now()) + milliseconds(1));
}

/// Waits until one of `what` happens; at most until `until`.
void wait_for(std::span<pollfd> what, Clock::time_point until) {
  const auto time = std::min(left(until), milliseconds(60'000));
  ::poll(what.data(), what.size(), static_cast<int>(time.count()));
}

/// Ranks that gave up at about the same time hear from rank 0 who is missing.
milliseconds grace(milliseconds timeout) {
  return std::clamp<milliseconds>(timeout / 8, milliseconds(50), milliseconds(10'000));
}

posix::Fd open_folder(const std::string& path) {
  posix::Fd folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) {
    throw_error(errno == ENOENT ? ErrorCode::kInvalidArgument : ErrorCode::kIo,
                "ranks cannot meet in the folder {}: {}; create it before the job begins",
                quote(path), std::strerror(errno));
  }
  return folder;
}

Address address_in(const posix::Fd& folder, const std::string& name) {
  const std::optional<Address> address = in_directory(folder, name);
  if (!address)
    throw_error(ErrorCode::kCorrupt, "{} cannot be the name of a rank's socket", quote(name));
  return *address;
}

/// Compares in a time that does not tell where the texts differ.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

/// A connection whose other side says hello, or has said it.
struct Visitor {
  posix::Fd socket;
  Clock::time_point since = Clock::now();
  Bytes heard{};
  std::optional<int> rank{};  ///< once it is known to be this rank of the job
  Bytes answer{};             ///< to be sent before the connection ends
  std::size_t sent = 0;
  bool is_ready = true;  ///< something may have come, or can be sent

  bool answered() const noexcept { return !answer.empty() && sent == answer.size(); }
};

/// Rank 0, which waits for all others.
class Host {
 public:
  Host(posix::Fd door, std::string place, int size, const std::string& token)
      : door_(std::move(door)), place_(std::move(place)), size_(size), token_(token) {
    names_.resize(static_cast<std::size_t>(size));
  }

  Meeting run(Doorstep doorstep, const Deadline& deadline) {
    names_.front() = doorstep.name();
    try {
      while (!missing().empty()) {
        if (deadline.passed()) give_up(deadline);
        wait(deadline.at);
        welcome_visitors();
        for (Visitor& visitor : visitors_) {
          if (visitor.is_ready) listen_to(visitor);
        }
        drop_strangers();
      }
    } catch (const CheckpointError& error) {
      refuse_all(error, deadline);
      throw;
    }
    Meeting meeting{std::move(doorstep), make_key(), names_};
    answer_all(framed(encode(Answer{{}, meeting.key, meeting.names})),
               Clock::now() + grace(deadline.timeout));
    return meeting;
  }

 private:
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if (names_[static_cast<std::size_t>(rank)].empty()) ranks.push_back(rank);
    }
    return ranks;
  }

  [[noreturn]] void give_up(const Deadline& deadline) const {
    std::string refused;
    if (refused_ > 0)
      refused = str_format("; {} were refused because they have another token", refused_);
    throw_error(ErrorCode::kUnavailable,
                "waited {} ms for {} of {} at the rendezvous {}{}; all ranks must be started "
                "with the same rendezvous, size and token",
                deadline.timeout.count(), ranks_text(missing()), size_, place_, refused);
  }

  void wait(Clock::time_point until) {
    std::vector<pollfd> events = {{door_.get(), POLLIN, 0}};
    for (const Visitor& visitor : visitors_) {
      const auto event = static_cast<short>(visitor.answer.empty() ? POLLIN : POLLOUT);
      events.push_back({visitor.socket.get(), event, 0});
      if (!visitor.rank) until = std::min(until, visitor.since + kMostSilence);
    }
    wait_for(events, until);
    for (std::size_t i = 0; i < visitors_.size(); ++i)
      visitors_[i].is_ready = events[i + 1].revents != 0;
  }

  void welcome_visitors() {
    for (std::size_t count = 0; count < kMostStrangers; ++count) {  // the others wait at the door
      posix::Fd socket = accept_from(door_);
      if (!socket) break;
      visitors_.push_back({std::move(socket)});
    }
  }

  void listen_to(Visitor& visitor) {
    if (!visitor.answer.empty()) return send_answer(visitor);
    if (visitor.rank) {
      // It has nothing more to say, so what can be read is its end.
      std::byte more{};
      if (const Moved moved = receive_some(visitor.socket, {&more, 1}); moved.ended) {
        names_[static_cast<std::size_t>(*visitor.rank)].clear();
        visitor.socket = {};
      }
      return;
    }
    while (visitor.socket) {
      const std::size_t length = visitor.heard.size() < kFrameLength
                                     ? kFrameLength
                                     : kFrameLength + frame_length(visitor.heard);
      if (length > kFrameLength + kMostHello) return void(visitor.socket = {});
      const std::size_t had = visitor.heard.size();
      if (had == length) break;
      visitor.heard.resize(length);
      const Moved moved = receive_some(visitor.socket, MutableByteView(visitor.heard).subspan(had));
      visitor.heard.resize(had + moved.bytes);
      if (moved.ended) visitor.socket = {};
      if (moved.bytes == 0) return;
    }
    if (visitor.socket) hear(visitor);
  }

  /// Returns an empty result for strangers. Throws CheckpointError for a rank of another version.
  std::optional<Hello> understand(ByteView bytes) {
    try {
      return decode_hello(bytes);
    } catch (const CheckpointError&) {
      const std::optional<std::string> token = token_in(bytes);
      if (token && same_secret(*token, token_)) throw;
      return std::nullopt;
    }
  }

  /// Takes a hello that has arrived.
  void hear(Visitor& visitor) {
    const auto hello = understand(ByteView(visitor.heard).subspan(kFrameLength));
    if (!hello) return void(visitor.socket = {});
    if (!same_secret(hello->token, token_)) {
      ++refused_;
      const CheckpointError refusal(
          ErrorCode::kInvalidArgument,
          str_format("rank 0 at {} has refused this rank {}: its token is another one; ranks of "
                     "one job need the same token, and jobs need places of their own",
                     place_, hello->rank));
      visitor.answer = framed(encode(Answer{.refusal = refusal}));
      return send_answer(visitor);
    }
    visitor.rank = hello->rank;  // who causes an error hears of it, too
    if (hello->size != size_) {
      throw_error(ErrorCode::kInvalidArgument,
                  "rank {} belongs to a job of {} ranks, and rank 0 to one of {}; start all "
                  "with the same size",
                  hello->rank, hello->size, size_);
    }
    if (hello->rank < 1 || hello->rank >= size_ || hello->address.empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "a process has come as rank {}; expected ranks from 1 to {}, and one rank 0",
                  hello->rank, size_ - 1);
    }
    std::string& name = names_[static_cast<std::size_t>(hello->rank)];
    if (!name.empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "two processes have come as rank {}, which listen at {} and {}; give each "
                  "process a rank of its own",
                  hello->rank, printable(name), printable(hello->address));
    }
    name = hello->address;
  }

  void drop_strangers() {
    const auto now = Clock::now();
    std::erase_if(visitors_, [&](const Visitor& visitor) {
      return !visitor.socket || visitor.answered() ||
             (!visitor.rank && now - visitor.since > kMostSilence);
    });
    const auto is_stranger = [](const Visitor& visitor) { return !visitor.rank; };
    auto strangers = std::ranges::count_if(visitors_, is_stranger);
    std::erase_if(visitors_, [&](const Visitor& visitor) {  // those that came first
      return is_stranger(visitor) && strangers-- > static_cast<std::ptrdiff_t>(kMostStrangers);
    });
  }

  static void send_answer(Visitor& visitor) {
    const Moved moved = send_some(visitor.socket, ByteView(visitor.answer).subspan(visitor.sent));
    visitor.sent += moved.bytes;
    if (moved.ended) visitor.socket = {};
  }

  void answer_all(const Bytes& answer, Clock::time_point until) {
    std::erase_if(visitors_, [](const Visitor& visitor) { return !visitor.rank; });
    for (Visitor& visitor : visitors_) visitor.answer = answer;
    while (!visitors_.empty() && Clock::now() < until) {
      for (Visitor& visitor : visitors_) send_answer(visitor);
      std::erase_if(visitors_,
                    [](const Visitor& visitor) { return !visitor.socket || visitor.answered(); });
      if (!visitors_.empty()) wait(until);
    }
  }

  /// Tells those that have come why there is no job. Ranks that come later find nobody.
  void refuse_all(const CheckpointError& error, const Deadline& deadline) {
    const Bytes answer = framed(encode(Answer{.refusal = error}));
    try {
      answer_all(answer, Clock::now() + grace(deadline.timeout));
    } catch (const CheckpointError&) {  // the error that is to be told is more important
    }
  }

  posix::Fd door_;
  std::string place_;
  int size_;
  const std::string& token_;
  std::vector<std::string> names_;
  std::vector<Visitor> visitors_{};
  std::uint64_t refused_ = 0;
};

/// Any other rank, which looks for rank 0.
class Guest {
 public:
  Guest(const Rendezvous& rendezvous, int rank, int size, const std::string& token)
      : rendezvous_(rendezvous), rank_(rank), size_(size), token_(token) {}

  Meeting run(const Deadline& deadline) {
    std::minstd_rand random(std::random_device{}());
    milliseconds pause = kShortestPause;
    while (true) {
      for (const Address& address : addresses()) {
        if (std::optional<Meeting> meeting = try_at(address, deadline)) return *std::move(meeting);
      }
      if (deadline.passed()) {
        throw_error(ErrorCode::kUnavailable,
                    "rank {} waited {} ms for rank 0 at the rendezvous {}: {}", rank_,
                    deadline.timeout.count(), rendezvous_.text(), trouble_);
      }
      // Not all ranks of a large job should come back at the same time.
      std::this_thread::sleep_for(std::min(left(deadline.at), pause + milliseconds(random() % 8)));
      pause = std::min(2 * pause, kLongestPause);
    }
  }

 private:
  /// Returns the addresses of rank 0; none if they cannot be found out now.
  std::vector<Address> addresses() {
    try {
      if (rendezvous_.folder.empty()) return resolve(rendezvous_.host, rendezvous_.port);
      if (!folder_) folder_ = std::make_shared<const posix::Fd>(open_folder(rendezvous_.folder));
      return {address_in(*folder_, kDoor)};
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      trouble_ = error.message();
      return {};
    }
  }

  std::optional<Meeting> try_at(const Address& address, const Deadline& deadline) {
    const posix::Fd socket = connect_to(address);
    if (!socket) return failed(std::strerror(errno));
    const auto until = std::min(deadline.at, Clock::now() + kLongestConnect);
    if (!ready(socket, POLLOUT, until)) return failed("the connection is not answered");
    if (const int error = error_of(socket)) return failed(std::strerror(error));
    Doorstep doorstep =
        folder_ ? Doorstep::in_folder(folder_) : Doorstep::beside(local_address(socket));
    const Bytes hello = framed(encode(Hello{token_, rank_, size_, doorstep.name()}));
    if (send_some(socket, hello).bytes != hello.size()) return failed("it takes no hello");

    Bytes heard;
    std::size_t length = kFrameLength;
    const auto verdict = deadline.at + grace(deadline.timeout);
    while (heard.size() < length) {
      if (!ready(socket, POLLIN, verdict)) return failed("it does not answer");
      const std::size_t had = heard.size();
      heard.resize(length);
      const Moved moved = receive_some(socket, MutableByteView(heard).subspan(had));
      heard.resize(had + moved.bytes);
      if (moved.ended) return failed("it has closed the connection");
      if (heard.size() == kFrameLength && length == kFrameLength) {
        length += frame_length(heard);
        if (length > kFrameLength + most_answer(size_)) return failed("it is not rank 0");
      }
    }
    Answer answer = decode_answer(ByteView(heard).subspan(kFrameLength), size_);
    if (answer.refusal) throw CheckpointError(*answer.refusal);
    return Meeting{std::move(doorstep), answer.key, std::move(answer.addresses)};
  }

  static bool ready(const posix::Fd& socket, short event, Clock::time_point until) {
    while (true) {
      pollfd one{socket.get(), event, 0};
      wait_for({&one, 1}, until);
      if (one.revents != 0) return true;
      if (Clock::now() >= until) return false;
    }
  }

  std::nullopt_t failed(std::string trouble) {
    trouble_ = std::move(trouble);
    return std::nullopt;
  }

  const Rendezvous& rendezvous_;
  int rank_;
  int size_;
  const std::string& token_;
  std::shared_ptr<const posix::Fd> folder_{};
  std::string trouble_ = "nobody has answered";
};

/// Waits at the first address of the host that belongs to this machine.
posix::Fd open_door(const Rendezvous& rendezvous, Address& at) {
  std::optional<CheckpointError> failure;
  for (const Address& address : resolve(rendezvous.host, rendezvous.port)) {
    try {
      at = address;
      return listen_at(address);
    } catch (const CheckpointError& error) {
      if (!failure) failure = error;
      // Another program is at this address, where the other ranks would look first.
      if (error.code() == ErrorCode::kAlreadyExists) break;
    }
  }
  throw_error(failure->code(),
              "rank 0 {}; the rendezvous is an address of the host of rank 0, with a port that "
              "no other program uses (a trainer may use that of MASTER_PORT)",
              failure->message());
}

/// Waits in a folder. A socket that an ended job has left there gives way; of jobs that find one at
/// the same time, one after the other looks.
posix::Fd open_door(const posix::Fd& folder, const Rendezvous& rendezvous) {
  const posix::Fd locked(::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int attempt = 0; locked && ::flock(locked.get(), LOCK_EX | LOCK_NB) != 0; ++attempt) {
    if (attempt == kMostAttempts) break;  // by somebody else, for other reasons
    std::this_thread::sleep_for(kShortestPause);
  }
  const Address address = address_in(folder, kDoor);
  while (true) {
    try {
      posix::Fd door = listen_at(address);
      ::fchmodat(folder.get(), kDoor, S_IRUSR | S_IWUSR, 0);
      return door;
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kAlreadyExists) throw;
    }
    if (connect_to(address) || errno != ECONNREFUSED) {
      throw_error(ErrorCode::kAborted,
                  "another job meets in the folder {}; give each job a folder "
                  "of its own",
                  quote(rendezvous.folder));
    }
    ::unlinkat(folder.get(), kDoor, 0);
  }
}

/// Removes the door of a folder when all have passed it.
class DoorOfFolder {
 public:
  explicit DoorOfFolder(const posix::Fd* folder) : folder_(folder) {}
  DoorOfFolder(const DoorOfFolder&) = delete;
  DoorOfFolder& operator=(const DoorOfFolder&) = delete;
  ~DoorOfFolder() {
    if (folder_ != nullptr) ::unlinkat(folder_->get(), kDoor, 0);
  }

 private:
  const posix::Fd* folder_;
};

}  // namespace

std::string Rendezvous::text() const {
  if (!folder.empty()) return quote(folder);
  const bool is_ipv6 = host.find(':') != host.npos;
  return str_format("{}:{}", is_ipv6 ? "[" + printable(host) + "]" : printable(host), port);
}

Rendezvous parse_rendezvous(const std::string& text) {
  if (text.find('/') != text.npos) return {.folder = text};
  const std::size_t colon = text.rfind(':');
  const std::uint64_t port = colon == text.npos ? 0 : parse_u64(text.substr(colon + 1)).value_or(0);
  std::string host = text.substr(0, colon == text.npos ? 0 : colon);
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || port == 0 || port > 65535 || (!is_bracketed && host.find(':') != host.npos)) {
    throw_error(ErrorCode::kInvalidArgument,
                "a rendezvous is HOST:PORT ([ADDRESS]:PORT for IPv6) or a folder, whose path "
                "has a slash; got {}",
                quote(text));
  }
  return {.host = host, .port = static_cast<std::uint16_t>(port)};
}

Doorstep Doorstep::beside(const Address& address) {
  Doorstep doorstep;
  doorstep.address_ = address.at_port(0);
  doorstep.socket_ = listen_at(doorstep.address_);
  doorstep.name_ = local_address(doorstep.socket_).text();
  return doorstep;
}

Doorstep Doorstep::in_folder(std::shared_ptr<const posix::Fd> folder) {
  Doorstep doorstep;
  doorstep.folder_ = std::move(folder);
  std::string name;
  for (const std::byte byte : make_key())
    name += str_format("{:02}", static_cast<unsigned>(byte) % 100);
  doorstep.name_ = name + ".sock";
  doorstep.socket_ = listen_at(address_in(*doorstep.folder_, doorstep.name_));
  ::fchmodat(doorstep.folder_->get(), doorstep.name_.c_str(), S_IRUSR | S_IWUSR, 0);
  return doorstep;
}

Doorstep::~Doorstep() {
  if (socket_ && folder_) ::unlinkat(folder_->get(), name_.c_str(), 0);
}

Address Doorstep::address_of(const std::string& name) const {
  if (folder_) return address_in(*folder_, name);
  if (const std::optional<Address> address = parse_address(name)) return *address;
  throw_error(ErrorCode::kCorrupt, "{} is not the address of a rank", quote(name));
}

Doorstep Doorstep::another() const {
  return folder_ ? in_folder(folder_) : beside(address_);
}

Meeting meet(const Rendezvous& rendezvous, int rank, int size, const std::string& token,
             const Deadline& deadline) {
  if (rank != 0) return Guest(rendezvous, rank, size, token).run(deadline);
  if (rendezvous.folder.empty()) {
    Address at;
    posix::Fd door = open_door(rendezvous, at);
    return Host(std::move(door), rendezvous.text(), size, token)
        .run(Doorstep::beside(at), deadline);
  }
  const auto folder = std::make_shared<const posix::Fd>(open_folder(rendezvous.folder));
  posix::Fd door = open_door(*folder, rendezvous);
  const DoorOfFolder removed(folder.get());
  return Host(std::move(door), rendezvous.text(), size, token)
      .run(Doorstep::in_folder(folder), deadline);
}

JobKey make_key() {
  std::random_device random;
  JobKey key{};
  for (std::size_t at = 0; at < key.size(); at += sizeof(std::uint32_t)) {
    const std::uint32_t word = random();
    std::memcpy(key.data() + at, &word, sizeof(word));
  }
  return key;
}

}  // namespace dckpt::sockets
