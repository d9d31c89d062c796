#include "strategies/comm/sockets/job_place.h"

#include <limits>
#include <optional>

#include "mapping/base/error.h"
#include "strategies/comm/sockets/handshake.h"

namespace dckpt::sockets {
namespace {

struct Launcher {
  const char* rank;
  const char* size;
};
// srun starts only the daemons of an mpirun inside of a SLURM job, so that one comes first.
constexpr Launcher kLaunchers[] = {{"RANK", "WORLD_SIZE"},
                                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                   {"PMI_RANK", "PMI_SIZE"},
                                   {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
constexpr std::uint64_t kFirstPort = 20'000;
constexpr std::uint64_t kPorts = 10'000;
constexpr std::uint64_t kLastPort = 65'535;

std::optional<std::string> text_of(const Variables& variables, const char* name) {
  const char* const value = variables(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::uint64_t> number_of(const Variables& variables, const char* name,
                                       std::uint64_t least, std::uint64_t most) {
  const std::optional<std::string> text = text_of(variables, name);
  if (!text) return std::nullopt;
  const std::optional<std::uint64_t> number = parse_u64(*text);
  if (!number || *number < least || *number > most) {
    throw_error(ErrorCode::kInvalidArgument,
                "the environment variable {} is {}, expected a number from {} to {}", name,
                quote(*text), least, most);
  }
  return number;
}

std::string rendezvous_of(const Variables& variables) {
  if (const auto given = text_of(variables, "DCKPT_RENDEZVOUS")) return *given;
  if (const auto host = text_of(variables, "MASTER_ADDR")) {
    const auto port = number_of(variables, "MASTER_PORT", 1, kLastPort - 1);
    const bool is_taken = text_of(variables, "TORCHELASTIC_USE_AGENT_STORE") == "True";
    const std::string name = host->find(':') == host->npos ? *host : "[" + *host + "]";
    if (port) return str_format("{}:{}", name, *port + (is_taken ? 1 : 0));
  }
  if (const auto hosts = text_of(variables, "SLURM_STEP_NODELIST")) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    const auto job = number_of(variables, "SLURM_JOB_ID", 0, kMost);
    const auto step = number_of(variables, "SLURM_STEP_ID", 0, kMost);
    const std::string host = first_host(*hosts);
    if (job && !host.empty())
      return str_format("{}:{}", host, kFirstPort + (*job * 16 + step.value_or(0)) % kPorts);
  }
  return {};
}

}  // namespace

std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const std::size_t end = list.find(']');
    if (end == list.npos) return {};
    host += list.substr(1, list.find_first_of("-,]") - 1);
    list.remove_prefix(end + 1);
  }
  return host;
}

JobPlace job_place(const Variables& variables) {
  for (const auto& [rank, size] : kLaunchers) {
    const auto ranks = number_of(variables, size, 1, kMostRanks);
    if (!ranks || !text_of(variables, rank)) continue;
    const auto own = number_of(variables, rank, 0, *ranks - 1);
    return {rendezvous_of(variables), static_cast<int>(*own), static_cast<int>(*ranks)};
  }
  throw_error(ErrorCode::kInvalidArgument,
              "the environment does not say which rank this process is: set RANK, WORLD_SIZE and "
              "DCKPT_RENDEZVOUS, or start it with torchrun, srun or mpirun");
}

}  // namespace dckpt::sockets
