#include <charconv>
#include <cstdlib>
#include <string>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"
#include "strategies/comm/c10d/process_group.h"

#ifdef USE_C10D_GLOO
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "strategies/comm/c10d/backend_call.h"
#include "strategies/comm/point_to_point.h"

namespace dckpt {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    throw_error(ErrorCode::kInvalidArgument,
                "the environment variable {} is not set; torchrun sets RANK, "
                "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                name);
  }
  return value;
}

int number(const char* name, int least, int most) {
  const std::string text = variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw_error(ErrorCode::kInvalidArgument,
                "the environment variable {} is {}, expected a number from {} to {}", name,
                quote(text), least, most);
  }
  return value;
}

std::string optional_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return printable(torch_error != nullptr ? torch_error->what_without_backtrace() : error.what());
}

std::string sign_of(int rank) {
  return "here/" + std::to_string(rank);
}

/// Returns the ranks that have left no sign in the store, as far as it can still be queried.
std::vector<int> missing_ranks(c10d::Store& store, int size) {
  constexpr int kMostAsked = 4096;  // the queries run one after the other
  std::vector<int> missing;
  try {
    for (int rank = 0; rank < std::min(size, kMostAsked); ++rank) {
      if (!store.check({sign_of(rank)})) missing.push_back(rank);
    }
  } catch (const std::exception&) {
    missing.clear();  // a rank that has given up meanwhile served the store
  }
  return missing;
}

c10::intrusive_ptr<c10d::Backend> connect(int rank, int size, const std::string& host, int port,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = rank == 0 && optional_variable("TORCHELASTIC_USE_AGENT_STORE") != "True";
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;  // the trainer may serve the same port in this process
  const auto server = c10::make_intrusive<c10d::TCPStore>(host, options);

  // The store also holds keys of the trainer, of workers before a restart, and of earlier calls.
  static std::atomic<int> calls = 0;
  const std::string prefix =
      str_format("dckpt/{}/{}", optional_variable("TORCHELASTIC_RESTART_COUNT"), calls++);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, server);
  store->setTimeout(timeout);

  const auto gloo = c10d::ProcessGroupGloo::Options::create(timeout);
  const std::string interface = optional_variable("GLOO_SOCKET_IFNAME");
  gloo->devices.push_back(interface.empty()
                              ? c10d::ProcessGroupGloo::createDefaultDevice()
                              : c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  gloo->threads = 1;  // for collectives only; messages need none
  store->set(sign_of(rank), std::vector<std::uint8_t>{1});
  try {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo);
  } catch (const std::exception& error) {
    const std::vector<int> missing = missing_ranks(*store, size);
    if (missing.empty()) throw;
    throw std::runtime_error(
        str_format("{} did not join: {}", ranks_text(missing), text_of(error)));
  }
}

}  // namespace

std::unique_ptr<Communicator> gloo_from_environment(std::chrono::milliseconds timeout) {
  constexpr int kMostRanks = 1 << 24;
  const int size = number("WORLD_SIZE", 1, kMostRanks);
  const int rank = number("RANK", 0, size - 1);
  const int port = number("MASTER_PORT", 1, 65535);
  const std::string host = variable("MASTER_ADDR");
  survive_closed_connections();
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = connect(rank, size, host, port,
                      std::clamp<std::chrono::milliseconds>(timeout, std::chrono::milliseconds(1),
                                                            std::chrono::hours(24)));
  } catch (const std::exception& error) {
    throw CheckpointError(
        ErrorCode::kUnavailable,
        str_format("cannot connect the {} processes of the job over {} port {}: {}", size,
                   quote(host), port, text_of(error)),
        {.rank = rank}, std::current_exception());
  }
  std::unique_ptr<Communicator> comm = c10d_communicator(backend, timeout);
  comm->barrier();  // rank 0 serves the store and must not leave before all are connected
  return comm;
}

}  // namespace dckpt

#else

namespace dckpt {

std::unique_ptr<Communicator> gloo_from_environment(std::chrono::milliseconds) {
  throw_error(ErrorCode::kUnsupported,
              "this dckpt was built without the headers of Gloo (Debian: libgloo-dev); "
              "make the process group in the trainer and pass it to c10d_communicator");
}

}  // namespace dckpt

#endif
