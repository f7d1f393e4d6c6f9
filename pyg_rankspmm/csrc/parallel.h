// Threads: as many as the caller says, one in a forked child.
#pragma once

#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace rankspmm {

// How many threads a piece of work shall take. An OpenMP region in a child of
// fork() hangs once the parent has run one, so a child gets one thread; work
// of less than `kSerialWork` steps is done before a second thread wakes up.
int usable_threads(int requested, int64_t work);

constexpr int64_t kSerialWork = 1 << 15;

// Calls f(thread, i) for each i < n. Items are handed out as threads ask for
// them: whoever needs results that do not depend on the number of threads
// must let each number be summed within one item, in a fixed order.
// The function is static because files of several SIMD levels include it: the
// linker must not let them share one copy.
template <class F>
static void parallel_for(int threads, int64_t n, const F& f) {
#ifdef _OPENMP
  if (threads > 1 && n > 1) {
#pragma omp parallel num_threads(threads)
    {
      const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < n; ++i) f(thread, i);
    }
    return;
  }
#endif
  for (int64_t i = 0; i < n; ++i) f(0, i);
}

}  // namespace rankspmm
