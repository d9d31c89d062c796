#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

// Internal to the POSIX storage; not installed.
namespace dckpt::posix {

/// Implements MappableFile::with_mapped for an open file.
///
/// Reading mapped pages that a file no longer has, or that the disk cannot deliver, raises SIGBUS.
/// The first call installs a handler. If it finds this thread copying out of a mapping, zeros
/// replace the rest of the mapping, the copy runs to its end, and the call returns false. It passes
/// every other SIGBUS on to the handler that was installed before. A thread that blocks SIGBUS does
/// not block it during the copy. Nothing is mapped if allow_mapped_reads() has turned that off, if
/// somebody else has replaced the handler since, or while a SIGBUS is pending.
bool with_mapped(int fd, std::uint64_t offset, std::uint64_t length,
                 const std::function<void(const std::byte*)>& copy);

}  // namespace dckpt::posix
