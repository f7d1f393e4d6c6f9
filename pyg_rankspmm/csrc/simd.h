// Short vectors, on the vector extensions of GCC and Clang: the compiler maps
// them to whatever registers the level of this file has.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace rankspmm {
namespace {

// RANKSPMM_WIDE tests the widest vectors on a processor that has shorter ones.
#if defined(__AVX512F__) || defined(RANKSPMM_WIDE)
constexpr int kVectorBytes = 64;
constexpr int kAccumulators = 16;  // of 32 registers
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kAccumulators = 8;  // of 16 registers
#else
constexpr int kVectorBytes = 16;
constexpr int kAccumulators = 8;
#endif

#define RANKSPMM_INLINE inline __attribute__((always_inline))

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = int32_t;
};
template <>
struct Bits<double> {
  using type = int64_t;
};

template <class T, int L>
struct VectorOf {
  typedef T type __attribute__((vector_size(L * sizeof(T))));
  typedef typename Bits<T>::type bits
      __attribute__((vector_size(L * sizeof(T))));
};

template <class T>
constexpr int kLanes = kVectorBytes / sizeof(T);

template <class T, int L = kLanes<T>>
using Vec = typename VectorOf<T, L>::type;
template <class T, int L = kLanes<T>>
using VecBits = typename VectorOf<T, L>::bits;

template <class V, class T>
RANKSPMM_INLINE V load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

template <class V, class T>
RANKSPMM_INLINE void store(T* p, V v) {
  std::memcpy(p, &v, sizeof(V));
}

template <class V, class T>
RANKSPMM_INLINE V splat(T value) {
  return V{} + value;
}

template <class To, class From>
RANKSPMM_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// Shuffles ####################################################################

template <class V, int... I>
RANKSPMM_INLINE V shuffle(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, I...);
}

// Lane i of the result is lane i ^ step.
template <class V, int Step, int... I>
RANKSPMM_INLINE V swap_lanes(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ Step)...);
}

// Combines all lanes whose numbers are equal modulo Period; each of them then
// holds the result.
template <class T, int L, int Period, class Op>
RANKSPMM_INLINE Vec<T, L> fold(Vec<T, L> v, const Op& op) {
  if constexpr (Period < L) {
    constexpr int kStep = L / 2;
    constexpr auto kAll = std::make_integer_sequence<int, L>();
    v = op(v, swap_lanes<Vec<T, L>, kStep>(v, kAll));
    if constexpr (Period < L / 2) {
      v = op(v, swap_lanes<Vec<T, L>, L / 4>(v, kAll));
    }
    if constexpr (Period < L / 4) {
      v = op(v, swap_lanes<Vec<T, L>, L / 8>(v, kAll));
    }
    if constexpr (Period < L / 8) {
      v = op(v, swap_lanes<Vec<T, L>, L / 16>(v, kAll));
    }
  }
  return v;
}

// One step of a transposed sum: of lanes in groups of 2 * Step, `a` keeps the
// lower half of each group and `b` the upper, summed pairwise.
template <class V, int L, int Step, int... I>
RANKSPMM_INLINE V add_halves(V a, V b, std::integer_sequence<int, I...>) {
  const V low = __builtin_shufflevector(
      a, b, ((I & Step) ? L + (I & ~Step) : (I & ~Step))...);
  const V high = __builtin_shufflevector(
      a, b, ((I & Step) ? L + (I | Step) : (I | Step))...);
  return low + high;
}

// Sums of L vectors at once: lane k of the result is the sum of all lanes of
// the k-th of the vectors at p.
template <class T, int L, int First = 0, int Count = L>
RANKSPMM_INLINE Vec<T, L> transposed_sum(const T* p) {
  if constexpr (Count == 1) {
    return load<Vec<T, L>>(p + First * L);
  } else {
    const Vec<T, L> a = transposed_sum<T, L, First, Count / 2>(p);
    const Vec<T, L> b =
        transposed_sum<T, L, First + Count / 2, Count / 2>(p);
    return add_halves<Vec<T, L>, L, Count / 2>(
        a, b, std::make_integer_sequence<int, L>());
  }
}

// Exponential and logarithm ###################################################

template <class T>
struct Constants;
template <>
struct Constants<float> {
  static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  static constexpr float kLn2High = 0.693359375f;
  static constexpr float kLn2Low = -2.12194440e-4f;
  static constexpr float kLowest = -87.3f;  // exp: the smallest normal number
  static constexpr float kHighest = 88.3f;
  static constexpr int kMantissa = 23;
  static constexpr int32_t kBias = 127;
  static constexpr int32_t kSqrtHalf = 0x3F3504F3;
  static constexpr int kExpTerms = 7;
  static constexpr int kLogTerms = 5;
};
template <>
struct Constants<double> {
  static constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLn2High = 6.93145751953125e-1;
  static constexpr double kLn2Low = 1.42860682030941723212e-6;
  static constexpr double kLowest = -708.3;
  static constexpr double kHighest = 709.4;
  static constexpr int kMantissa = 52;
  static constexpr int64_t kBias = 1023;
  static constexpr int64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  static constexpr int kExpTerms = 13;
  static constexpr int kLogTerms = 11;
};

template <class T>
constexpr T inverse_factorial(int k) {
  T product = 1;
  for (int i = 2; i <= k; ++i) product *= i;
  return 1 / product;
}

// exp(x), within about one unit in the last place; 0 below the normal numbers,
// NaN for NaN.
template <class T, int L = kLanes<T>>
RANKSPMM_INLINE Vec<T, L> exp(Vec<T, L> x) {
  using V = Vec<T, L>;
  using B = VecBits<T, L>;
  using K = Constants<T>;
  const V lowest = splat<V>(K::kLowest), highest = splat<V>(K::kHighest);
  const V z = x < lowest ? lowest : (x > highest ? highest : x);
  const V t = z * T(1.4426950408889634) + K::kMagic;
  const V n = t - K::kMagic;
  const V r = (z - n * K::kLn2High) - n * K::kLn2Low;
  V y = splat<V>(inverse_factorial<T>(K::kExpTerms));
#pragma GCC unroll 16
  for (int k = K::kExpTerms - 1; k >= 0; --k) {
    y = y * r + inverse_factorial<T>(k);
  }
  // The lowest bits of t hold n: shifted to the exponent they make 2^n.
  const B scale = (bit_cast<B>(t) << K::kMantissa) +
                  (K::kBias << K::kMantissa);
  return x < lowest ? V{} : y * bit_cast<V>(scale);
}

// log(x) of normal numbers; NaN for NaN.
template <class T, int L = kLanes<T>>
RANKSPMM_INLINE Vec<T, L> log(Vec<T, L> x) {
  using V = Vec<T, L>;
  using B = VecBits<T, L>;
  using K = Constants<T>;
  // x = 2^n m with m in [sqrt(1/2), sqrt(2))
  const B offset = bit_cast<B>(x) - K::kSqrtHalf;
  const B exponent = offset >> K::kMantissa;
  const V m = bit_cast<V>(bit_cast<B>(x) - (exponent << K::kMantissa));
  const V n = __builtin_convertvector(exponent, V);
  // log m = 2 artanh(s)
  const V s = (m - T(1)) / (m + T(1));
  const V s2 = s * s;
  V y = splat<V>(T(1) / (2 * K::kLogTerms + 1));
#pragma GCC unroll 16
  for (int k = K::kLogTerms - 1; k >= 0; --k) {
    y = y * s2 + T(1) / (2 * k + 1);
  }
  y = n * K::kLn2High + (n * K::kLn2Low + T(2) * s * y);
  return y + (x - x);  // NaN stays NaN
}

}  // namespace
}  // namespace rankspmm
