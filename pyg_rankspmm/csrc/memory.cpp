#include "memory.h"

#include <cstdlib>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace rankspmm {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kLargePage = size_t{1} << 21;
constexpr size_t kLargeArray = size_t{1} << 23;

}  // namespace

void* allocate(size_t bytes) {
  const size_t align = bytes >= kLargeArray ? kLargePage : kCacheLine;
  void* memory = nullptr;
  if (posix_memalign(&memory, align, bytes) != 0) throw std::bad_alloc();
  prefer_large_pages(memory, bytes);
  return memory;
}

void release(void* memory) { std::free(memory); }

void prefer_large_pages(void* memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes < kLargeArray) return;
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (begin + kLargePage - 1) & ~(kLargePage - 1);
  const uintptr_t last = (begin + bytes) & ~(kLargePage - 1);
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#else
  (void)memory;
  (void)bytes;
#endif
}

}  // namespace rankspmm
