// Threads: as many as the caller says, one in a forked child.
#pragma once

#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace rankspmm {

// How many threads a piece of work shall take. An OpenMP region in a child of
// fork() hangs once the parent has run one, so a child gets one thread; work
// of less than `kSerialWork` steps is done before a second thread wakes up.
int usable_threads(int requested, int64_t work);

constexpr int64_t kSerialWork = 1 << 15;

// ThreadSanitizer does not see into the OpenMP runtime: it is told here that
// all threads begin behind what came before a region, and end before what
// comes after it. Nothing else. What the compiler itself hands to a region is
// not looked at; what the region calls is, if it stays a function of its own.
#ifdef __SANITIZE_THREAD__
#define RANKSPMM_UNSEEN __attribute__((no_sanitize_thread))
#define RANKSPMM_SEEN __attribute__((noinline))
#else
#define RANKSPMM_UNSEEN
#define RANKSPMM_SEEN inline
#endif

template <class F>
RANKSPMM_SEEN static void run_item(const F& f, int thread, int64_t i) {
  f(thread, i);
}

static inline void happens_before(const void* mark) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(const_cast<void*>(mark));
#else
  (void)mark;
#endif
}

static inline void happens_after(const void* mark) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(const_cast<void*>(mark));
#else
  (void)mark;
#endif
}

// Calls f(thread, i) for each i < n. Items are handed out as threads ask for
// them: whoever needs results that do not depend on the number of threads
// must let each number be summed within one item, in a fixed order.
// The function is static because files of several SIMD levels include it: the
// linker must not let them share one copy.
template <class F>
RANKSPMM_UNSEEN static void parallel_for(int threads, int64_t n, const F& f) {
#ifdef _OPENMP
  if (threads > 1 && n > 1) {
    static const char begin = 0, end = 0;
    happens_before(&begin);
#pragma omp parallel num_threads(threads)
    {
      happens_after(&begin);
      const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < n; ++i) run_item(f, thread, i);
      happens_before(&end);
    }
    happens_after(&end);
    return;
  }
#endif
  for (int64_t i = 0; i < n; ++i) f(0, i);
}

}  // namespace rankspmm
