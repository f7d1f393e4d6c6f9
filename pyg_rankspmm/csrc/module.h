// What the files of the Python module share.
#pragma once

#include <cstdint>

#include <nanobind/nanobind.h>

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void bind_rank(nanobind::module_& m);
