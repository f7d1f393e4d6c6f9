// Which of the compiled SIMD levels runs.
#include <atomic>

#include "kernels.h"

namespace rankspmm {

#define RANKSPMM_DECLARE(level) \
  namespace level {             \
  extern const Level kLevel;    \
  }
#ifdef RANKSPMM_HAS_X86_LEVELS
RANKSPMM_DECLARE(v4)
RANKSPMM_DECLARE(v3)
#endif
RANKSPMM_DECLARE(baseline)

namespace {

struct Available {
  const Level* levels[4] = {};
  Available() {
    int n = 0;
#ifdef RANKSPMM_HAS_X86_LEVELS
    // The features that the compiler may use under -march=x86-64-v4 and v3;
    // the operating system's support of the registers is part of the answer.
    __builtin_cpu_init();
    const bool has_v3 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("popcnt");
    const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") &&
                        __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (has_v4) levels[n++] = &v4::kLevel;
    if (has_v3) levels[n++] = &v3::kLevel;
#endif
    levels[n++] = &baseline::kLevel;
  }
};

const Available& available() {
  static const Available all;
  return all;
}

std::atomic<const Level*> chosen{nullptr};

}  // namespace

const Level* const* available_levels() { return available().levels; }

const Level& current_level() {
  const Level* level = chosen.load();
  return level ? *level : *available().levels[0];
}

void set_level(const Level& level) { chosen.store(&level); }

template <>
const Kernels<float>& kernels<float>() {
  return current_level().f32;
}

template <>
const Kernels<double>& kernels<double>() {
  return current_level().f64;
}

}  // namespace rankspmm
