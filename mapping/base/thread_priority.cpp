#include "mapping/base/thread_priority.h"

#include <sys/resource.h>

namespace dckpt {

void lower_priority_of_thread() noexcept {
  // On Linux, each thread has its own niceness, and 0 is the calling thread. A refusal by the
  // system is ignored.
  constexpr int kNiceness = 10;
  if (getpriority(PRIO_PROCESS, 0) < kNiceness) setpriority(PRIO_PROCESS, 0, kNiceness);
}

}  // namespace dckpt
