#include "mapping/base/error_boundary.h"

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr const char* kOutOfMemory = "out of memory";

CheckpointError foreign(ErrorCode code, const std::string& message) {
  return {code, message, {}, std::current_exception()};
}

/// Made while there is memory; its copies take none.
const CheckpointError& out_of_memory = *new CheckpointError(ErrorCode::kIo, kOutOfMemory);

CheckpointError described() {
  try {
    throw;
  } catch (const CheckpointError& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return foreign(ErrorCode::kIo, kOutOfMemory);
  } catch (const std::system_error& error) {
    return foreign(ErrorCode::kIo, "the system refused: " + printable(error.what(), 1000));
  } catch (const std::exception& error) {
    return foreign(ErrorCode::kInternal, "unexpected error: " + printable(error.what(), 1000));
  } catch (...) {
    return foreign(ErrorCode::kInternal, "unexpected error of an unknown type");
  }
}

}  // namespace

CheckpointError current_error() noexcept {
  try {
    return described();
  } catch (...) {  // there is no memory for the description
    return out_of_memory;
  }
}

void throw_checkpoint_error() {
  throw current_error();
}

}  // namespace dckpt
