#include "benchmarks/process_stats.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace dckpt::bench {
namespace {

/// Returns the number after "name:" in a file of such lines.
std::uint64_t field(const char* file, const std::string& name) {
  std::ifstream lines(file);
  std::string word;
  while (lines >> word) {
    std::uint64_t value = 0;
    if (word == name + ":" && lines >> value) return value;
  }
  return 0;
}

void for_each_file(const std::filesystem::path& directory, const std::function<void(int)>& visit) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    visit(file);
    ::close(file);
  }
}

}  // namespace

std::uint64_t resident_bytes() {
  return field("/proc/self/status", "VmRSS") * 1024;
}
std::uint64_t peak_resident_bytes() {
  return field("/proc/self/status", "VmHWM") * 1024;
}
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}
std::uint64_t bytes_read() {
  return field("/proc/self/io", "rchar");
}
std::uint64_t bytes_fetched() {
  return field("/proc/self/io", "read_bytes");
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double load_average() {
  double one_minute = 0;
  return ::getloadavg(&one_minute, 1) == 1 ? one_minute : 0;
}

void warm_cache(const std::filesystem::path& directory) {
  std::vector<char> buffer(std::size_t{8} << 20);
  for_each_file(directory, [&](int file) {
    while (::read(file, buffer.data(), buffer.size()) > 0) {
    }
  });
}

void drop_cache(const std::filesystem::path& directory) {
  for_each_file(directory, [](int file) {
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  });
}

}  // namespace dckpt::bench
