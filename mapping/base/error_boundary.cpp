#include "mapping/base/error_boundary.h"

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

CheckpointError foreign(ErrorCode code, const std::string& message) {
  return {code, message, {}, std::current_exception()};
}

}  // namespace

CheckpointError current_error() {
  try {
    throw;
  } catch (const CheckpointError& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return foreign(ErrorCode::kIo, "out of memory");
  } catch (const std::system_error& error) {
    return foreign(ErrorCode::kIo, "the system refused: " + printable(error.what(), 1000));
  } catch (const std::exception& error) {
    return foreign(ErrorCode::kInternal, "unexpected error: " + printable(error.what(), 1000));
  } catch (...) {
    return foreign(ErrorCode::kInternal, "unexpected error of an unknown type");
  }
}

void throw_checkpoint_error() {
  throw current_error();
}

}  // namespace dckpt
