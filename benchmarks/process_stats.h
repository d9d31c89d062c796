#pragma once

#include <cstdint>
#include <filesystem>

namespace dckpt::bench {

/// Linux's counters for this process; 0 if unavailable.
std::uint64_t resident_bytes();
std::uint64_t peak_resident_bytes();
/// Resets the peak to the current resident size.
void reset_peak();
/// Returns the bytes requested by read calls, whatever their source.
std::uint64_t bytes_read();
/// Returns the bytes fetched from the device.
std::uint64_t bytes_fetched();
/// Returns the user and system time of all threads.
double cpu_seconds();
/// Returns the number of runnable processes, averaged over a minute.
double load_average();

/// Reads every file of a directory once, so that it is in the page cache.
void warm_cache(const std::filesystem::path& directory);
/// Writes every file of a directory to the device and asks the kernel to drop its pages.
void drop_cache(const std::filesystem::path& directory);

}  // namespace dckpt::bench
