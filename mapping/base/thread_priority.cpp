#include "mapping/base/thread_priority.h"

#include <sys/resource.h>

namespace dckpt {

void lower_priority_of_thread() noexcept {
  // Linux has a niceness for each thread, not for the process, and 0 is the calling thread. Where
  // it is not allowed, nothing has to be done about it.
  constexpr int kNiceness = 10;
  if (getpriority(PRIO_PROCESS, 0) < kNiceness) setpriority(PRIO_PROCESS, 0, kNiceness);
}

}  // namespace dckpt
