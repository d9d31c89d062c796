#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

// Internal to the POSIX storage; not installed.
namespace dckpt::posix {

/// MappableFile::with_mapped for an open file.
///
/// Reading mapped pages that a file has no longer, or that the disk cannot deliver, raises SIGBUS.
/// The first call installs a handler: where it finds this thread copying out of a mapping, zeros
/// take the place of the rest of it, the copy runs to its end, and the call returns false. It
/// passes every other SIGBUS on to what was installed before. A thread that blocks SIGBUS does not
/// during the copy. Nothing is mapped when allow_mapped_reads() has turned
/// that off, when somebody else has replaced the handler since, or while a SIGBUS waits to be
/// unblocked.
bool with_mapped(int fd, std::uint64_t offset, std::uint64_t length,
                 const std::function<void(const std::byte*)>& copy);

}  // namespace dckpt::posix
