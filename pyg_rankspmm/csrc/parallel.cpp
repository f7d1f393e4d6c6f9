#include "parallel.h"

#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define RANKSPMM_HAS_FORK 1
#endif

namespace rankspmm {
namespace {

std::atomic<bool> is_forked_child{false};

#ifdef RANKSPMM_HAS_FORK
const int registered = pthread_atfork(
    nullptr, nullptr, [] { is_forked_child.store(true); });
#endif

}  // namespace

int usable_threads(int requested, int64_t work) {
  if (requested < 1 || work < kSerialWork || is_forked_child.load()) return 1;
  return requested;
}

}  // namespace rankspmm
