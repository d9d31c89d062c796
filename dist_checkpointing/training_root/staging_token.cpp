#include "dist_checkpointing/training_root/staging_token.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {

namespace {

constexpr std::string_view kWorkerPrefix = ".work-";

std::string host_name() {
  std::array<char, 64> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::string name;
  for (const char c : std::string(host.data())) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    if (plain) name += c;
  }
  return name;
}

/// Returns the time at which a process was started, in clock ticks since the host's start; "0" if
/// there is no such process, if the time is unknown, or if it is a zombie without other threads.
std::string start_of(const std::string& process) {
  // Places in /proc/PID/stat (see proc(5)), counted after the name in parentheses.
  constexpr std::size_t kState = 3 - 3, kThreads = 20 - 3, kStartTime = 22 - 3;
  std::ifstream file(str_format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(std::min(line.rfind(')'), line.size() - 1) + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  if (fields.size() <= kStartTime) return "0";
  const bool ended = fields[kState] == "X" ||
                     (fields[kState] == "Z" && parse_u64(fields[kThreads]).value_or(0) <= 1);
  return ended ? "0" : fields[kStartTime];
}

std::string token_of(const std::string& process, const std::string& start) {
  return str_format("{}-{}-{}-", host_name(), process, start);
}

}  // namespace

std::string staging_token() {
  const std::string process = std::to_string(::getpid());
  std::array<char, 16> number{};
  std::snprintf(number.data(), number.size(), "%08x", std::random_device{}());
  return token_of(process, start_of(process)) + number.data();
}

bool made_by_running_process(std::string_view token) {
  const std::vector<std::string> parts = split(token, '-');
  if (parts.size() < 4) return false;
  const std::string& process = parts[parts.size() - 3];
  const std::string& start = parts[parts.size() - 2];
  return parse_u64(process) && parse_u64(start) && token.starts_with(token_of(process, start)) &&
         start_of(process) == start;
}

bool made_by_ended_process(std::string_view token) {
  const std::vector<std::string> parts = split(token, '-');
  if (parts.size() < 4) return false;
  const std::string& process = parts[parts.size() - 3];
  const std::string& start = parts[parts.size() - 2];
  return parse_u64(process) && parse_u64(start).value_or(0) > 0 &&
         token.starts_with(token_of(process, start)) && start_of(process) != start;
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
