#pragma once

#include <pthread.h>

#include <cstddef>

namespace dckpt {

/// Makes the system refuse to start threads during its lifetime: their stacks would be too large.
class NoThreads {
 public:
  NoThreads() {
    ::pthread_getattr_default_np(&usual_);
    pthread_attr_t impossible = usual_;
    ::pthread_attr_setstacksize(&impossible, std::size_t{1} << 46);
    ::pthread_setattr_default_np(&impossible);
  }
  ~NoThreads() { ::pthread_setattr_default_np(&usual_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t usual_{};
};

}  // namespace dckpt
