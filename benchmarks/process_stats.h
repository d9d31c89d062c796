#pragma once

#include <cstdint>
#include <filesystem>

namespace dckpt::bench {

/// What Linux counts for this process; 0 where it does not say.
std::uint64_t resident_bytes();
std::uint64_t peak_resident_bytes();
/// Sets the peak back to what is resident now.
void reset_peak();
/// Bytes asked by read calls, from wherever they came.
std::uint64_t bytes_read();
/// Bytes fetched from the device.
std::uint64_t bytes_fetched();
/// User and system time of all threads.
double cpu_seconds();
/// Processes that wanted to run, averaged over a minute.
double load_average();

/// Reads every file of a directory once, so that it is in the page cache.
void warm_cache(const std::filesystem::path& directory);
/// Writes every file of a directory to the device and asks the kernel to forget its pages.
void drop_cache(const std::filesystem::path& directory);

}  // namespace dckpt::bench
