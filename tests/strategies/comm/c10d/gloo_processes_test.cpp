#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mapping/base/error.h"
#include "strategies/comm/c10d/process_group.h"

namespace dckpt::gloo_processes_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

class GlooProcesses : public ::testing::Test {
 protected:
  GlooProcesses() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dckpt_gloo_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~GlooProcesses() override { std::filesystem::remove_all(folder_); }

  /// Returns the exit codes of `size` processes that run gloo_rank.
  std::vector<int> run(int size, const std::string& what, int port,
                       const Variables& more = {}) const {
    std::vector<pid_t> processes;
    for (int rank = 0; rank < size; ++rank) {
      Variables variables = {{"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", std::to_string(size)},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", std::to_string(port)},
                             {"GLOO_SOCKET_IFNAME", "lo"}};
      variables.insert(more.begin(), more.end());
      std::vector<std::string> lines;
      for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
      std::vector<char*> environment;
      for (std::string& line : lines) environment.push_back(line.data());
      for (char** line = environ; *line != nullptr; ++line) environment.push_back(*line);
      environment.push_back(nullptr);
      std::vector<std::string> words = {DCKPT_GLOO_RANK, what, (folder_ / "checkpoint").string()};
      std::vector<char*> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
      pid_t process = 0;
      EXPECT_EQ(posix_spawn(&process, arguments[0], nullptr, nullptr, arguments.data(),
                            environment.data()),
                0);
      processes.push_back(process);
    }
    std::vector<int> codes;
    for (const pid_t process : processes) {
      int status = 0;
      EXPECT_EQ(waitpid(process, &status, 0), process);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    return codes;
  }

  static int free_port() {
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length), 0);
    close(descriptor);
    return ntohs(address.sin_port);
  }

  std::filesystem::path folder_;
};

TEST_F(GlooProcesses, TwoSaveAndFourLoadWhatTheySaved) {
  EXPECT_THAT(run(2, "save", free_port()), Each(0));  // rank 0 serves the port

  c10d::TCPStoreOptions agent;  // here the parent of the processes serves it, as under torchrun
  agent.port = 0;
  agent.isServer = true;
  agent.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", agent);
  EXPECT_THAT(run(4, "load", store->getPort(),
                  {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "1"}}),
              Each(0));
}

/// Returns the error in a job of one process with some of its variables changed; an empty value
/// unsets a variable.
std::string error_in(Variables changes,
                     std::chrono::milliseconds timeout = std::chrono::milliseconds(100)) {
  changes.insert(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});
  for (const auto& [name, value] : changes)
    value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  std::string message = "no error";
  try {
    gloo_from_environment(timeout);
  } catch (const CheckpointError& error) {
    message = std::string(to_string(error.code())) + ": " + error.message();
  }
  for (const auto& [name, value] : changes) unsetenv(name.c_str());
  return message;
}

TEST(GlooEnvironment, MissingAndMalformedVariablesAreNamed) {
  EXPECT_THAT(error_in({{"RANK", ""}}),
              HasSubstr("invalid-argument: the environment variable RANK is not set"));
  EXPECT_THAT(error_in({{"MASTER_ADDR", ""}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error_in({{"WORLD_SIZE", "two"}}),
              HasSubstr("WORLD_SIZE is 'two', expected a number from 1"));
  EXPECT_THAT(error_in({{"RANK", "1"}}), HasSubstr("RANK is '1', expected a number from 0 to 0"));
  EXPECT_THAT(error_in({{"MASTER_PORT", "70000"}}),
              HasSubstr("MASTER_PORT is '70000', expected a number from 1 to 65535"));
}

TEST(GlooEnvironment, AStoreThatNobodyServesIsAnErrorWithinTheTimeout) {
  EXPECT_THAT(
      error_in({{"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
      HasSubstr(
          "unavailable: cannot connect the 1 processes of the job over '127.0.0.1' port 1: "));
}

/// This rank must have started the store and left its sign in it within the timeout.
TEST_F(GlooProcesses, ARankThatDoesNotComeIsNamed) {
  EXPECT_THAT(error_in({{"WORLD_SIZE", "3"},
                        {"MASTER_PORT", std::to_string(free_port())},
                        {"GLOO_SOCKET_IFNAME", "lo"}},
                       std::chrono::seconds(5)),
              HasSubstr("ranks 1, 2 did not join: "));
}

}  // namespace
}  // namespace dckpt::gloo_processes_test
