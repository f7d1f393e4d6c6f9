// Temporary arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rankspmm {

void* allocate(size_t bytes);  // aligned to a cache line; throws bad_alloc
void release(void* memory);

// Asks the system for large pages behind a large array that is about to be
// written for the first time: fewer page faults, and fewer misses of the
// address cache when its rows are gathered later. A hint, nothing more.
void prefer_large_pages(void* memory, size_t bytes);

namespace {  // files of several SIMD levels include this; see parallel.h

template <class T>
class Array {
 public:
  explicit Array(int64_t size)
      : data_(size > 0 ? static_cast<T*>(allocate(size * sizeof(T)))
                       : nullptr) {}
  ~Array() { release(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_;
};

}  // namespace
}  // namespace rankspmm
