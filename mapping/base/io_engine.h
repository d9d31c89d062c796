#pragma once

#include <cstdint>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"

namespace DCKPT_API dckpt {

/// The method of writing files.
enum class IoEngine : std::uint8_t {
  kAuto,      ///< direct for large files that are made durable on a local disk (ext4, XFS), else
              ///< buffered
  kBuffered,  ///< through the page cache
  kDirect,    ///< O_DIRECT: fills no page cache; takes up to 12 MiB per writing thread
};
inline constexpr EnumNames<IoEngine, 3> kIoEngineNames{
    {{IoEngine::kAuto, "auto"}, {IoEngine::kBuffered, "buffered"}, {IoEngine::kDirect, "direct"}}};

/// The method of reading long runs of files; short ones always go through the page cache.
enum class ReadEngine : std::uint8_t {
  kAuto,      ///< direct for data that the page cache does not hold, on a local disk (ext4, XFS),
              ///< if nobody else reads the same; else buffered
  kBuffered,  ///< through the page cache, where other readers find it
  kDirect,    ///< O_DIRECT where the file system has it: fills no page cache; takes 4 MiB per
              ///< thread
};
inline constexpr EnumNames<ReadEngine, 3> kReadEngineNames{{{ReadEngine::kAuto, "auto"},
                                                            {ReadEngine::kBuffered, "buffered"},
                                                            {ReadEngine::kDirect, "direct"}}};

}  // namespace dckpt
