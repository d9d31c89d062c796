#pragma once

#include "mapping/base/error.h"

namespace dckpt::tool {

/// The exit codes of the process.
enum ExitCode : int {
  kOk = 0,
  kDiffers = 1,  ///< also: verification found a problem, or request and checkpoint disagree
  kUsage = 2,
  kIoFailure = 3,
  kCorrupt = 4,
  kIncomplete = 5,
  kUnsupported = 6,
  kConflict = 7,   ///< the destination exists, or another job is working there
  kInternal = 70,  ///< internal error; EX_SOFTWARE of sysexits.h
};

constexpr ExitCode exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kMismatch: return kDiffers;
    case ErrorCode::kInvalidArgument: return kUsage;
    case ErrorCode::kIo: return kIoFailure;
    case ErrorCode::kCorrupt: return kCorrupt;
    case ErrorCode::kIncomplete: return kIncomplete;
    case ErrorCode::kUnsupported: return kUnsupported;
    case ErrorCode::kCancelled: return kIoFailure;
    case ErrorCode::kAlreadyExists: return kConflict;
    case ErrorCode::kAborted: return kConflict;
    case ErrorCode::kUnavailable: return kIoFailure;
    case ErrorCode::kInternal: return kInternal;
  }
  return kInternal;
}

}  // namespace dckpt::tool
