#include "dist_checkpointing/training_root/staging_token.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {

namespace {

constexpr std::string_view kWorkerPrefix = ".work-";

/// Leaves room for the rest of a token in a name of 255 bytes (kMaxTargetNameBytes).
constexpr std::size_t kMaxHostBytes = 42;

std::string host_name() {
  std::array<char, 64> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::string name;
  for (const char c : std::string(host.data())) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    if (plain && name.size() < kMaxHostBytes) name += c;
  }
  return name;
}

/// Returns where a symbolic link leads to; empty if that cannot be read.
std::string target_of(const char* link) {
  std::array<char, 64> text{};
  const ::ssize_t length = ::readlink(link, text.data(), text.size());
  return {text.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
}

/// Returns what tells apart the tables of processes that this one could see: "b", the begin of the
/// identifier of the kernel's boot, "n", and the number of the PID namespace. Containers may share
/// the name of a host, and a process number means another process in each. Empty if unknown, also
/// if /proc shows another namespace than that of this process.
std::string process_table() {
  constexpr std::size_t kBootDigits = 8;
  std::ifstream boot_id("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(boot_id, boot);
  std::string space = target_of("/proc/self/ns/pid");
  std::erase_if(space, [](char c) { return c < '0' || c > '9'; });  // "pid:[4026531836]"
  if (target_of("/proc/self") != std::to_string(::getpid()) || boot.size() < kBootDigits ||
      space.empty())
    return "";
  return str_format("b{}n{}", boot.substr(0, kBootDigits), space);
}

bool is_process_table(std::string_view text) {
  return text.starts_with('b') && text.find('n') != std::string_view::npos;
}

/// Returns the time at which a process was started, in clock ticks since the host's start; "0" if
/// there is no such process, or if it is a zombie without other threads; empty if it is unknown.
std::string start_of(const std::string& process) {
  // Places in /proc/PID/stat (see proc(5)), counted after the name in parentheses.
  constexpr std::size_t kState = 3 - 3, kThreads = 20 - 3, kStartTime = 22 - 3;
  std::ifstream file(str_format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(std::min(line.rfind(')'), line.size() - 1) + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  if (fields.size() <= kStartTime) {
    // /proc may be mounted so that it hides the processes of other users.
    const auto number = static_cast<pid_t>(parse_u64(process).value_or(0));
    return ::kill(number, 0) != 0 && errno == ESRCH ? "0" : "";
  }
  const bool ended = fields[kState] == "X" ||
                     (fields[kState] == "Z" && parse_u64(fields[kThreads]).value_or(0) <= 1);
  return ended ? "0" : fields[kStartTime];
}

/// The parts of a token.
struct TokenParts {
  std::string host;
  std::string table;  ///< as process_table(); empty in tokens of earlier releases
  std::string process;
  std::string start;
};

/// Returns nothing for text that is not a token.
std::optional<TokenParts> parse_token(std::string_view token) {
  std::vector<std::string> parts = split(token, '-');
  if (parts.size() < 4) return std::nullopt;
  parts.pop_back();  // the random number
  TokenParts found;
  found.start = std::move(parts.back());
  parts.pop_back();
  found.process = std::move(parts.back());
  parts.pop_back();
  if (!parse_u64(found.process) || !parse_u64(found.start)) return std::nullopt;
  if (parts.size() > 1 && is_process_table(parts.back())) {
    found.table = std::move(parts.back());
    parts.pop_back();
  }
  for (const std::string& part : parts) found.host += (found.host.empty() ? "" : "-") + part;
  return found;
}

}  // namespace

std::string staging_token() {
  const std::string process = std::to_string(::getpid());
  const std::string table = process_table();
  const std::string start = start_of(process);
  std::array<char, 16> number{};
  std::snprintf(number.data(), number.size(), "%08x", std::random_device{}());
  return str_format("{}-{}{}{}-{}-{}", host_name(), table, table.empty() ? "" : "-", process,
                    start.empty() ? "0" : start, number.data());
}

bool made_by_running_process(std::string_view token) {
  const std::optional<TokenParts> of = parse_token(token);
  return of && of->host == host_name() && (of->table.empty() || of->table == process_table()) &&
         start_of(of->process) == of->start;
}

bool made_by_ended_process(std::string_view token) {
  const std::optional<TokenParts> of = parse_token(token);
  if (!of || of->table.empty() || of->host != host_name() || of->table != process_table() ||
      of->start == "0")
    return false;
  const std::string start = start_of(of->process);
  return !start.empty() && start != of->start;
}

std::optional<TokenOwner> owner_of(std::string_view token) {
  std::optional<TokenParts> of = parse_token(token);
  if (!of) return std::nullopt;
  return TokenOwner{std::move(of->host), parse_u64(of->process).value_or(0)};
}

bool is_of_pool(std::string_view name) {
  const auto sibling = parse_hidden_sibling(name);
  return sibling && sibling->token.starts_with(kPoolToken);
}

std::string worker_folder(std::string_view token) {
  return std::string(kWorkerPrefix).append(token);
}

std::string_view worker_of_folder(std::string_view name) {
  return name.starts_with(kWorkerPrefix) ? name.substr(kWorkerPrefix.size()) : "";
}

std::string random_id() {
  std::random_device device;
  std::array<char, 40> text{};
  const unsigned a = device(), b = device(), c = device(), d = device();
  std::snprintf(text.data(), text.size(), "%08x-%04x-4%03x-%04x-%04x%08x", a, b >> 16, b & 0xFFF,
                0x8000U | (c >> 18), c & 0xFFFF, d);
  return text.data();
}

}  // namespace dckpt
