// The kernels of one SIMD level. CMake compiles this file once for each level,
// with its own instruction set and RANKSPMM_LEVEL. All but the table at the
// end has internal linkage: the linker must never let the baseline call a
// function that was compiled for AVX-512. That is also why the standard
// library stays out.
//
// What all kernels share: the matrix is walked row by row, the rows that a row
// refers to are gathered in place, prefetched some entries ahead, and the sums
// stay in vector registers for a strip of channels at a time. Traffic is one
// gathered row of heads * channels numbers for each entry, and little else.
#include <algorithm>

#include "kernels.h"

#include "memory.h"
#include "parallel.h"
#include "simd.h"

#define RANKSPMM_RESTRICT __restrict__

namespace rankspmm {
namespace {

// Rows of more entries are cut into segments whose sums are merged in order:
// this bounds the buffers, spreads a huge row over the threads, and does not
// depend on their number.
constexpr int64_t kSegment = 1024;
constexpr int kMaxBlock = 32;  // entries whose gathered rows stay in L1
constexpr int kAhead = 12;     // entries of prefetching, features
constexpr int kAheadNarrow = 24;  // entries of prefetching, logits
constexpr int64_t kLine = 64;

template <class A>
constexpr A min(A a, A b) {
  return b < a ? b : a;
}
template <class A>
constexpr A max(A a, A b) {
  return a < b ? b : a;
}
constexpr int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

template <class T>
constexpr T kInfinity = static_cast<T>(__builtin_inf());

RANKSPMM_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

template <class T>
RANKSPMM_INLINE void prefetch_row(const T* p, int64_t bytes) {
  const char* line = reinterpret_cast<const char*>(p);
  for (int64_t b = 0; b < bytes; b += kLine) prefetch(line + b);
}

template <class T>
RANKSPMM_INLINE void copy(const T* from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

template <class T>
void fill(T* p, int64_t n, T value) {
  for (int64_t i = 0; i < n; ++i) p[i] = value;
}

// Rows and segments ###########################################################

struct Segment {
  int64_t row, begin, count;
};

// The rows of more than kSegment entries, cut into segments.
struct LongRows {
  int64_t num_rows = 0;
  int64_t num_segments = 0;
  Array<int64_t> rows;   // of each long row
  Array<int64_t> first;  // the first segment of each long row, and the end
  Array<Segment> segments;

  explicit LongRows(const Csr& m)
      : rows(m.count / kSegment),
        first(m.count / kSegment + 1),
        segments(2 * (m.count / kSegment)) {
    for (int64_t i = 0; i < m.rows; ++i) {
      if (m.ptr[i + 1] - m.ptr[i] <= kSegment) continue;
      rows[num_rows] = i;
      first[num_rows++] = num_segments;
      for (int64_t e = m.ptr[i]; e < m.ptr[i + 1]; e += kSegment) {
        segments[num_segments++] = {i, e,
                                    min(kSegment, m.ptr[i + 1] - e)};
      }
    }
    first[num_rows] = num_segments;
  }
};

// The first row whose work, counted in entries and rows, starts at `work` or
// later.
int64_t row_of_work(const Csr& m, int64_t work) {
  int64_t low = 0, high = m.rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (m.ptr[middle] + middle < work) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls short_row(thread, i) for all rows of at most kSegment entries, in
// chunks of equally many entries; segment(thread, s) for each segment of the
// long ones, and then long_row(thread, k) for each of them.
template <class ShortRow, class SegmentOf, class LongRow>
void for_rows(const Csr& m, const LongRows& long_rows, int threads,
              const ShortRow& short_row, const SegmentOf& segment,
              const LongRow& long_row) {
  const int64_t work = m.count + m.rows;
  const int64_t chunk = max<int64_t>(256, min<int64_t>(8192, work / 32));
  parallel_for(threads, (work + chunk - 1) / chunk, [&](int t, int64_t c) {
    const int64_t end = row_of_work(m, (c + 1) * chunk);
    for (int64_t i = row_of_work(m, c * chunk); i < end; ++i) {
      if (m.ptr[i + 1] - m.ptr[i] <= kSegment) short_row(t, i);
    }
  });
  parallel_for(threads, long_rows.num_segments, segment);
  parallel_for(threads, long_rows.num_rows, long_row);
}

// Gathered rows ###############################################################

// Row c of a [rows, width] matrix. If vectors read past the end of a row, the
// last rows come from a padded copy, so that nobody reads past the matrix.
template <class T>
class Rows {
 public:
  Rows(const T* base, int64_t rows, int64_t width, int over_read)
      : base_(base),
        width_(width),
        first_padded_(rows - min(rows, (over_read + width - 1) / width)),
        padding_(over_read > 0
                     ? (rows - first_padded_) * width + over_read : 0) {
    if (over_read == 0) {
      first_padded_ = INT64_MAX;
      return;
    }
    const int64_t kept = (rows - first_padded_) * width;
    copy(base + first_padded_ * width, kept, padding_.data());
    fill(padding_.data() + kept, over_read, T(0));
  }

  RANKSPMM_INLINE const T* operator[](int32_t c) const {
    return c < first_padded_ ? base_ + c * width_
                             : padding_.data() + (c - first_padded_) * width_;
  }

 private:
  const T* base_;
  int64_t width_;
  int64_t first_padded_;
  Array<T> padding_;
};

// Entries begin to begin + count of a row, and how far the array of columns
// goes on behind `idx`, for prefetching.
struct Entries {
  const int32_t* idx;
  int count;
  int64_t last;  // idx[last] may be read

  RANKSPMM_INLINE int32_t ahead(int64_t e, int distance) const {
    return idx[min(e + distance, last)];
  }
  Entries sub(int64_t begin, int64_t n) const {
    return {idx + begin, static_cast<int>(n), last - begin};
  }
};

Entries entries_of(const Csr& m, int64_t begin, int64_t count) {
  return {m.idx + begin, static_cast<int>(count), m.count - 1 - begin};
}

// Strips ######################################################################

// acc += sum over entries e of coef[e, h] * row(e)[h, c], for kHeads heads of
// kVectors vectors each, all of whose sums fit into registers.
template <class T>
using StripFn = void (*)(const Rows<T>& rows, Entries entries, const T* coef,
                         int64_t coef_stride, int64_t offset, int64_t channels,
                         T* acc);

template <class T, int L, int kHeads, int kVectors, bool kExact, bool kFetch>
void strip(const Rows<T>& rows, Entries entries,
           const T* RANKSPMM_RESTRICT coef, int64_t coef_stride,
           int64_t offset, int64_t channels, T* RANKSPMM_RESTRICT acc) {
  using V = Vec<T, L>;
  if (kExact) channels = kVectors * L;
  V sum[kHeads * kVectors];
#pragma GCC unroll 16
  for (int k = 0; k < kHeads * kVectors; ++k) sum[k] = load<V>(acc + k * L);
  for (int e = 0; e < entries.count; ++e) {
    const T* x = rows[entries.idx[e]] + offset;
    if (kFetch) {
      const T* next = rows[entries.ahead(e, kAhead)] + offset;
      constexpr int64_t kBytes = kHeads * kVectors * L * sizeof(T);
#pragma GCC unroll 16
      for (int64_t b = 0; b < kBytes; b += kLine) {
        prefetch(reinterpret_cast<const char*>(next) + b);
      }
    }
    const T* c = coef + e * coef_stride;
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum[h * kVectors + v] += c[h] * load<V>(x + h * channels + v * L);
      }
    }
  }
#pragma GCC unroll 16
  for (int k = 0; k < kHeads * kVectors; ++k) store(acc + k * L, sum[k]);
}

template <class T, int L, int kHeads, int kVectors>
StripFn<T> strip_fn(bool exact, bool fetch) {
  // With one head the distance of heads does not matter.
  if (exact || kHeads == 1) {
    return fetch ? strip<T, L, kHeads, kVectors, true, true>
                 : strip<T, L, kHeads, kVectors, true, false>;
  }
  return fetch ? strip<T, L, kHeads, kVectors, false, true>
               : strip<T, L, kHeads, kVectors, false, false>;
}

template <class T, int L, int kVectors>
StripFn<T> strip_of_heads(int heads, bool exact, bool fetch) {
  if constexpr (kAccumulators >= 16 * kVectors) {
    if (heads == 16) return strip_fn<T, L, 16, kVectors>(exact, fetch);
  }
  if constexpr (kAccumulators >= 8 * kVectors) {
    if (heads == 8) return strip_fn<T, L, 8, kVectors>(exact, fetch);
  }
  if constexpr (kAccumulators >= 4 * kVectors) {
    if (heads == 4) return strip_fn<T, L, 4, kVectors>(exact, fetch);
  }
  if constexpr (kAccumulators >= 2 * kVectors) {
    if (heads == 2) return strip_fn<T, L, 2, kVectors>(exact, fetch);
  }
  return strip_fn<T, L, 1, kVectors>(exact, fetch);
}

// How a row of [heads, channels] is cut into strips. The sums are padded to
// whole vectors for each head.
template <class T>
class Strips {
 public:
  int64_t heads, channels;
  int lanes;        // of a vector
  int64_t vectors;  // of a head
  int64_t padded;   // numbers in a row of sums, whole vectors

  Strips(int64_t num_heads, int64_t num_channels, bool fetch)
      : heads(num_heads),
        channels(num_channels),
        // Few channels waste less in shorter vectors.
        lanes(num_channels <= kLanes<T> / 2 && kLanes<T> >= 4
                  ? kLanes<T> / 2 : kLanes<T>),
        vectors((num_channels + lanes - 1) / lanes),
        padded(round_up(num_heads * vectors * lanes, kLanes<T>)),
        strips_(num_heads * vectors) {
    const bool half = lanes != kLanes<T>;
    const bool together =
        vectors < kAccumulators && (vectors & (vectors - 1)) == 0;
    for (int64_t h = 0; h < heads;) {
      int64_t n = 1;
      if (together) {
        while (2 * n * vectors <= kAccumulators && h + 2 * n <= heads) n *= 2;
        add(h, n, 0, vectors, half, fetch);
      } else {
        for (int64_t v = 0; v < vectors;) {
          int64_t w = 1;
          while (2 * w <= kAccumulators && v + 2 * w <= vectors) w *= 2;
          add(h, 1, v, w, half, fetch);
          v += w;
        }
      }
      h += n;
    }
  }

  int over_read() const {
    return static_cast<int>(vectors * lanes - channels);
  }

  // acc += the weighted sum of the rows of `entries`. Long lists are taken in
  // blocks, so that the strips after the first one find their rows near.
  RANKSPMM_INLINE void sum(const Rows<T>& rows, Entries entries, const T* coef,
                           int64_t coef_stride, T* acc) const {
    const int64_t block = count_ == 1 ? entries.count : 16;
    for (int64_t e = 0; e < entries.count; e += block) {
      const Entries part = entries.sub(e, min<int64_t>(block,
                                                       entries.count - e));
      for (int64_t s = 0; s < count_; ++s) {
        const Strip& strip = strips_[s];
        strip.run(rows, part, coef + e * coef_stride + strip.head, coef_stride,
                  strip.offset, channels, acc + strip.place);
      }
    }
  }

 private:
  struct Strip {
    StripFn<T> run;
    int64_t head, offset, place;
  };

  void add(int64_t head, int64_t num_heads, int64_t vector,
           int64_t num_vectors, bool half, bool fetch) {
    strips_[count_++] = {
        half ? choose<max(2, kLanes<T> / 2)>(num_heads, num_vectors, fetch)
             : choose<kLanes<T>>(num_heads, num_vectors, fetch),
        head, head * channels + vector * lanes,
        (head * vectors + vector) * lanes};
  }

  template <int L>
  StripFn<T> choose(int64_t num_heads, int64_t num_vectors,
                    bool fetch) const {
    const bool exact = vectors * L == channels;
    const int n = static_cast<int>(num_heads);
    switch (num_vectors) {
      case 16:
        if constexpr (kAccumulators >= 16) {
          return strip_of_heads<T, L, 16>(n, exact, fetch);
        }
      case 8: return strip_of_heads<T, L, 8>(n, exact, fetch);
      case 4: return strip_of_heads<T, L, 4>(n, exact, fetch);
      case 2: return strip_of_heads<T, L, 2>(n, exact, fetch);
      default: return strip_of_heads<T, L, 1>(n, exact, fetch);
    }
  }

  int64_t count_ = 0;
  Array<Strip> strips_;
};

// Padded rows #################################################################

// The row with zeros behind each head's channels, in `to` if it needs any.
template <class T>
const T* pad_row(const Strips<T>& s, const T* from, T* to) {
  if (s.over_read() == 0) return from;
  const int64_t stride = s.vectors * s.lanes;
  for (int64_t h = 0; h < s.heads; ++h) {
    copy(from + h * s.channels, s.channels, to + h * stride);
    fill(to + h * stride + s.channels, stride - s.channels, T(0));
  }
  return to;
}

// to[h, c] = from[h, c] * scale[h] + bias[h, c]; scale and bias may be null.
template <class T, int L>
void finish_lanes(const Strips<T>& s, const T* RANKSPMM_RESTRICT from,
                  const T* scale, const T* RANKSPMM_RESTRICT bias,
                  T* RANKSPMM_RESTRICT to) {
  using V = Vec<T, L>;
  const int64_t C = s.channels;
  for (int64_t h = 0; h < s.heads; ++h) {
    const T factor = scale ? scale[h] : T(1);
    int64_t c = 0;
    for (; c + L <= C; c += L) {
      V y = load<V>(from + c) * factor;
      if (bias) y += load<V>(bias + c);
      store(to + c, y);
    }
    for (; c < C; ++c) to[c] = from[c] * factor + (bias ? bias[c] : T(0));
    from += s.vectors * L;
    to += C;
    if (bias) bias += C;
  }
}

template <class T>
void finish_row(const Strips<T>& s, const T* from, const T* scale,
                const T* bias, T* to) {
  if (s.lanes == kLanes<T>) {
    finish_lanes<T, kLanes<T>>(s, from, scale, bias, to);
  } else {
    finish_lanes<T, max(2, kLanes<T> / 2)>(s, from, scale, bias, to);
  }
}

// n is a multiple of the lanes of a vector.
template <class T>
RANKSPMM_INLINE void clear(T* p, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes<T>) store(p + i, Vec<T>{});
}

// Dots ########################################################################

// dot[e * stride + h] = <own[h], row(e)[h]>: a vector of partial sums for each
// pair, and then the sums of as many vectors as they have lanes at once.
// `part` has room for that many vectors; stride * count is rounded up to L.
template <class T>
using DotFn = void (*)(const Strips<T>& s, const Rows<T>& rows,
                       Entries entries, const T* own, int64_t stride, T* part,
                       T* dot);

template <class T, int L, int kVectors, bool kExact>
void dots(const Strips<T>& s, const Rows<T>& rows, Entries entries,
          const T* RANKSPMM_RESTRICT own, int64_t stride,
          T* RANKSPMM_RESTRICT part, T* RANKSPMM_RESTRICT dot) {
  using V = Vec<T, L>;
  using B = VecBits<T, L>;
  const int64_t vectors = kVectors > 0 ? kVectors : s.vectors;
  const int64_t channels = kExact ? vectors * L : s.channels;
  const int64_t heads = s.heads;
  const int64_t bytes = heads * channels * sizeof(T);
  // What a vector reads behind its head's channels may be NaN.
  B inside;
  for (int l = 0; l < L; ++l) {
    inside[l] = (vectors - 1) * L + l < channels ? -1 : 0;
  }
  for (int e = 0; e < entries.count; ++e) {
    const T* x = rows[entries.idx[e]];
    prefetch_row(rows[entries.ahead(e, kAhead)], bytes);
    T* p = part + e * stride * L;
    for (int64_t h = 0; h < heads; ++h) {
      const T* a = x + h * channels;
      const T* b = own + h * vectors * L;
      V sum[4] = {};
      if constexpr (kVectors > 0) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors - !kExact; ++v) {
          sum[v % 4] += load<V>(a + v * L) * load<V>(b + v * L);
        }
      } else {
        for (int64_t v = 0; v < vectors - !kExact; ++v) {
          sum[0] += load<V>(a + v * L) * load<V>(b + v * L);
        }
      }
      if (!kExact) {
        const int64_t v = vectors - 1;
        const V last = bit_cast<V>(bit_cast<B>(load<V>(a + v * L)) & inside);
        sum[3] += last * load<V>(b + v * L);
      }
      if constexpr (kVectors == 1) {
        store(p + h * L, sum[kExact ? 0 : 3]);
      } else {
        store(p + h * L, (sum[0] + sum[1]) + (sum[2] + sum[3]));
      }
    }
  }
  const int64_t pairs = entries.count * stride;
  for (int64_t q = 0; q < pairs; q += L) {
    store(dot + q, transposed_sum<T, L>(part + q * L));
  }
}

template <class T, int L>
DotFn<T> dots_of_lanes(int64_t vectors, bool exact) {
  if (!exact) {
    return vectors == 1 ? dots<T, L, 1, false> : dots<T, L, 0, false>;
  }
  switch (vectors) {
    case 1: return dots<T, L, 1, true>;
    case 2: return dots<T, L, 2, true>;
    case 4: return dots<T, L, 4, true>;
    case 8: return dots<T, L, 8, true>;
    case 16: return dots<T, L, 16, true>;
    default: return dots<T, L, 0, true>;
  }
}

template <class T>
DotFn<T> choose_dots(const Strips<T>& s) {
  const bool exact = s.over_read() == 0;
  return s.lanes == kLanes<T>
             ? dots_of_lanes<T, kLanes<T>>(s.vectors, exact)
             : dots_of_lanes<T, max(2, kLanes<T> / 2)>(s.vectors, exact);
}

// How many entries of gathered rows stay near between two loops over them; a
// multiple of all numbers of entries that share a vector.
template <class T>
int64_t block_of(const Strips<T>& s) {
  return s.heads * s.channels * sizeof(T) >= 1024 ? 16 : kMaxBlock;
}

// spmm and sddmm ##############################################################

template <class T>
int64_t work_of(const Csr& m, int64_t heads, int64_t channels) {
  return (m.count + m.rows) * (heads * channels + 8);
}

template <class T>
void spmm(const SpmmArgs<T>& a, int threads) {
  const Csr& m = a.matrix;
  const int64_t H = a.heads;
  threads = usable_threads(threads, work_of<T>(m, H, a.channels));
  prefer_large_pages(a.out, m.rows * H * a.channels * sizeof(T));
  const Strips<T> strips(H, a.channels, true);
  const Rows<T> rows(a.x, m.cols, H * a.channels, strips.over_read());
  const LongRows long_rows(m);
  const int64_t width = strips.padded;
  Array<T> coefs(threads * kSegment * H), accs(threads * width);
  Array<T> partial(long_rows.num_segments * width);
  if (!a.value) fill(coefs.data(), threads * kSegment * H, T(1));

  const auto sum = [&](int t, int64_t begin, int64_t count, T* acc) {
    T* coef = coefs.data() + t * kSegment * H;
    if (a.value) {
      for (int64_t e = 0; e < count; ++e) {
        const int64_t edge = m.perm ? m.perm[begin + e] : begin + e;
        copy(a.value + edge * H, H, coef + e * H);
      }
    }
    clear(acc, width);
    strips.sum(rows, entries_of(m, begin, count), coef, H, acc);
  };
  const auto write = [&](int64_t i, const T* acc) {
    finish_row(strips, acc, static_cast<const T*>(nullptr),
               static_cast<const T*>(nullptr), a.out + i * H * a.channels);
  };
  for_rows(
      m, long_rows, threads,
      [&](int t, int64_t i) {
        T* acc = accs.data() + t * width;
        sum(t, m.ptr[i], m.ptr[i + 1] - m.ptr[i], acc);
        write(i, acc);
      },
      [&](int t, int64_t k) {
        const Segment& s = long_rows.segments[k];
        sum(t, s.begin, s.count, partial.data() + k * width);
      },
      [&](int, int64_t k) {
        const int64_t first = long_rows.first[k];
        T* acc = partial.data() + first * width;
        for (int64_t s = first + 1; s < long_rows.first[k + 1]; ++s) {
          const T* next = partial.data() + s * width;
          for (int64_t c = 0; c < width; ++c) acc[c] += next[c];
        }
        write(long_rows.rows[k], acc);
      });
}

template <class T>
void sddmm(const SddmmArgs<T>& a, int threads) {
  const Csr& m = a.matrix;
  const int64_t H = a.heads;
  threads = usable_threads(threads, work_of<T>(m, H, a.channels));
  prefer_large_pages(a.out, m.size * H * sizeof(T));
  const Strips<T> strips(H, a.channels, true);
  const Rows<T> rows(a.x, m.cols, H * a.channels, strips.over_read());
  const DotFn<T> dots = choose_dots(strips);
  const LongRows long_rows(m);
  const int64_t pairs = round_up(kMaxBlock * H, kLanes<T>);
  Array<T> owns(threads * strips.padded), parts(threads * pairs * kLanes<T>);
  Array<T> products(threads * pairs);
  fill(parts.data(), threads * pairs * kLanes<T>, T(0));
  if (m.count < m.size) fill(a.out, m.size * H, T(0));

  const auto run = [&](int t, int64_t i, int64_t begin, int64_t count) {
    T* product = products.data() + t * pairs;
    const T* own = pad_row(strips, a.g + i * H * a.channels,
                           owns.data() + t * strips.padded);
    for (int64_t e = 0; e < count; e += kMaxBlock) {
      const int64_t n = min<int64_t>(kMaxBlock, count - e);
      dots(strips, rows, entries_of(m, begin + e, n), own, H,
           parts.data() + t * pairs * kLanes<T>, product);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t place = begin + e + k;
        const int64_t edge = m.perm ? m.perm[place] : place;
        copy(product + k * H, H, a.out + edge * H);
      }
    }
  };
  for_rows(
      m, long_rows, threads,
      [&](int t, int64_t i) { run(t, i, m.ptr[i], m.ptr[i + 1] - m.ptr[i]); },
      [&](int t, int64_t k) {
        const Segment& s = long_rows.segments[k];
        run(t, s.row, s.begin, s.count);
      },
      [](int, int64_t) {});
}

// Heads #######################################################################

// Numbers for each (entry, head) lie in one flat array, so that loops over it
// are vectorised whatever the number of heads is. kHeads = 1, 2, 4 or 8; 0: any
// number, padded to whole vectors. A period is the shortest run of whole
// entries and whole vectors.
template <class T, int kHeads>
struct Flat {
  static constexpr int W = kLanes<T>;
  static constexpr int kEntries =
      kHeads > 0 && kHeads < W ? W / kHeads : 1;  // of a period
  static constexpr int kPeriod = kEntries > 1 ? 1 : (kHeads > 0 ? kHeads : W);

  // All lanes of the same head.
  template <class Op>
  static RANKSPMM_INLINE Vec<T> fold_heads(Vec<T> v, const Op& op) {
    return fold<T, W, (kEntries > 1 ? kHeads : W)>(v, op);
  }
  static RANKSPMM_INLINE int64_t vectors(int64_t padded_heads) {
    return kEntries > 1 ? 1 : (kHeads > 0 ? kHeads : padded_heads) / W;
  }
  static RANKSPMM_INLINE int64_t periods(int64_t entries) {
    return (entries + kEntries - 1) / kEntries;
  }
};

template <class T>
int64_t pad_heads(int64_t heads) {
  const bool is_small = heads == 1 || heads == 2 || heads == 4 || heads == 8;
  return is_small ? heads : round_up(heads, kLanes<T>);
}

// pattern[l] = value[l % heads], over one period; zeros for padded heads.
template <class T, int kHeads>
RANKSPMM_INLINE void spread(const T* value, int64_t heads, int64_t padded,
                            T* pattern) {
  if constexpr (kHeads > 0) {
    constexpr int kLength = max(kHeads, kLanes<T>);
#pragma GCC unroll 16
    for (int l = 0; l < kLength; ++l) {
      pattern[l] = value ? value[l % kHeads] : T(0);
    }
  } else {
    for (int64_t l = 0; l < padded; ++l) {
      pattern[l] = value && l < heads ? value[l] : T(0);
    }
  }
}

template <class T, int kHeads>
RANKSPMM_INLINE void copy_heads(const T* from, int64_t heads, T* to) {
  if constexpr (kHeads > 0) {
    std::memcpy(to, from, kHeads * sizeof(T));
  } else {
    copy(from, heads, to);
  }
}

template <class T, int kHeads>
RANKSPMM_INLINE void add_heads(const T* from, int64_t heads, T* to) {
  const int64_t n = kHeads > 0 ? kHeads : heads;
  for (int64_t h = 0; h < n; ++h) to[h] += from[h];
}

// Dropout #####################################################################

RANKSPMM_INLINE uint32_t mix(uint32_t h) {  // the finaliser of MurmurHash3
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  return h ^ (h >> 16);
}

// mask[e, h] = 0 or 1 / (1 - rate), by a hash of seed, edge and head: the same
// whenever and wherever it is asked for. `key` has room for all.
template <class T>
void dropout_mask(const Dropout& d, const int32_t* edges, int64_t begin,
                  int64_t count, int64_t heads, int64_t padded,
                  uint32_t* RANKSPMM_RESTRICT key, T* RANKSPMM_RESTRICT mask) {
  const uint32_t low = static_cast<uint32_t>(d.seed);
  const uint32_t high = static_cast<uint32_t>(static_cast<uint64_t>(d.seed) >>
                                              32);
  uint32_t of_edge[64];
  const uint64_t limit = static_cast<uint64_t>(d.rate * 4294967296.0 + 0.5);
  const uint32_t threshold =
      static_cast<uint32_t>(min<uint64_t>(limit, 0xFFFFFFFFu));
  const T scale = d.rate < 1.0 ? static_cast<T>(1.0 / (1.0 - d.rate)) : T(0);
  for (int64_t start = 0; start < count; start += 64) {
    const int64_t n = min<int64_t>(64, count - start);
    for (int64_t e = 0; e < n; ++e) {
      const int64_t place = begin + start + e;
      const uint32_t edge = static_cast<uint32_t>(edges ? edges[place] : place);
      of_edge[e] = mix(edge * 0x9E3779B1u + low);
    }
    uint32_t* k = key + start * padded;
    for (int64_t h = 0; h < heads; ++h) {
      const uint32_t of_head = static_cast<uint32_t>(h) * 0x7FEB352Du + high;
      for (int64_t e = 0; e < n; ++e) k[e * padded + h] = of_edge[e] ^ of_head;
    }
  }
  for (int64_t q = 0; q < count * padded; ++q) {
    mask[q] = mix(key[q]) >= threshold ? scale : T(0);
  }
}

// Attention, forward ##########################################################

// Buffers of one thread.
template <class T>
struct ForwardBuffers {
  T* coef;        // [kSegment, padded heads] and a period
  T* mask;        // the same, with dropout
  uint32_t* key;  // the same
  T* acc;         // a row of sums
  T* top;         // one period each: maximum,
  T* total;       // sum of exponentials,
  T* pattern;     // and whatever belongs to the row
  T* lse;
};

template <class T>
RANKSPMM_INLINE Vec<T> leaky_relu(Vec<T> u, T slope) {
  return u > 0 ? u : u * slope;
}

// coef = exp(s - top) of the entries of a row or segment, with their maximum
// and sum for each head.
template <class T, int kHeads>
void softmax(const AttentionArgs<T>& a, int64_t padded, int64_t i,
             int64_t begin, int64_t count, const ForwardBuffers<T>& b) {
  using F = Flat<T, kHeads>;
  using V = Vec<T>;
  constexpr int W = F::W;
  const Csr& m = a.matrix;
  const int64_t H = kHeads > 0 ? kHeads : a.heads;
  const int64_t stride = kHeads > 0 ? kHeads : padded;
  const Entries entries = entries_of(m, begin, count);
  T* coef = b.coef;
  for (int64_t e = 0; e < count; ++e) {
    prefetch(a.a_src + entries.ahead(e, kAheadNarrow) * H);
    copy_heads<T, kHeads>(a.a_src + entries.idx[e] * H, H, coef + e * stride);
  }
  if (a.a_edge) {
    for (int64_t e = 0; e < count; ++e) {
      const int64_t edge = m.perm ? m.perm[begin + e] : begin + e;
      add_heads<T, kHeads>(a.a_edge + edge * H, H, coef + e * stride);
    }
  }
  const int64_t vectors = F::vectors(padded);
  const int64_t periods = F::periods(count);
  // What lies behind the last entry must not count.
  const int64_t rest = F::kEntries > 1 ? count * H - (periods - 1) * W : W;
  VecBits<T> inside;
  for (int l = 0; l < W; ++l) inside[l] = l < rest ? -1 : 0;
  spread<T, kHeads>(a.a_dst ? a.a_dst + i * H : nullptr, H, padded, b.pattern);

  const auto larger = [](V p, V q) { return p > q ? p : q; };
  const auto plus = [](V p, V q) { return p + q; };
  for (int64_t v = 0; v < vectors; ++v) {
    const V a_dst = load<V>(b.pattern + v * W);
    V top = splat<V>(-kInfinity<T>);
    for (int64_t k = 0; k < periods; ++k) {
      T* p = coef + (k * vectors + v) * W;
      V s = leaky_relu<T>(load<V>(p) + a_dst, a.negative_slope);
      if (F::kEntries > 1 && k == periods - 1) {
        s = inside ? s : splat<V>(-kInfinity<T>);
      }
      store(p, s);
      top = larger(s, top);
    }
    top = F::fold_heads(top, larger);
    const V base = top == -kInfinity<T> ? V{} : top;
    V total = {};
    for (int64_t k = 0; k < periods; ++k) {
      T* p = coef + (k * vectors + v) * W;
      const V y = exp<T>(load<V>(p) - base);
      store(p, y);
      total += y;
    }
    total = F::fold_heads(total, plus);
    store(b.top + v * W, top);
    store(b.total + v * W, total);
  }
}

template <class T>
using SoftmaxFn = void (*)(const AttentionArgs<T>&, int64_t, int64_t, int64_t,
                           int64_t, const ForwardBuffers<T>&);

template <class T>
SoftmaxFn<T> choose_softmax(int64_t heads) {
  switch (heads) {
    case 1: return softmax<T, 1>;
    case 2: return softmax<T, 2>;
    case 4: return softmax<T, 4>;
    case 8: return softmax<T, 8>;
    default: return softmax<T, 0>;
  }
}

// lse and the scale of each head, from maximum and sum; top and total are
// overwritten.
template <class T>
void close_softmax(int64_t heads, T* top, T* total, T* scale, T* lse) {
  using V = Vec<T>;
  for (int64_t h = 0; h < heads; h += kLanes<T>) {
    const V z = load<V>(total + h);
    const V safe = z == 0 ? splat<V>(T(1)) : z;
    const V l = z == 0 ? splat<V>(-kInfinity<T>)
                       : load<V>(top + h) + log<T>(safe);
    store(scale + h, z == 0 ? V{} : T(1) / safe);
    store(total + h, l);
  }
  for (int64_t h = 0; h < heads; ++h) lse[h] = total[h];
}

template <class T>
void attention(const AttentionArgs<T>& a, int threads) {
  const Csr& m = a.matrix;
  const int64_t H = a.heads, HC = H * a.channels;
  threads = usable_threads(threads, work_of<T>(m, H, a.channels));
  prefer_large_pages(a.out, m.rows * HC * sizeof(T));
  const Strips<T> strips(H, a.channels, true);
  const Rows<T> rows(a.x, m.cols, HC, strips.over_read());
  const LongRows long_rows(m);
  const SoftmaxFn<T> softmax = choose_softmax<T>(H);
  const int64_t padded = pad_heads<T>(H);
  const int64_t period = round_up(padded, kLanes<T>);
  const int64_t flat = kSegment * padded + period;
  const bool drops = a.dropout.rate > 0.0;

  const int64_t narrow = 4 * period;
  Array<T> flats(threads * flat * (drops ? 2 : 1)), accs(threads * strips.padded);
  Array<T> patterns(threads * narrow);
  Array<uint32_t> keys(drops ? threads * flat : 0);
  const int64_t part = strips.padded + 2 * period;
  Array<T> partial(long_rows.num_segments * part);
  // Padded heads are computed with, and nobody looks at the result.
  fill(flats.data(), threads * flat, T(0));
  fill(patterns.data(), threads * narrow, T(0));
  if (drops) fill(keys.data(), threads * flat, uint32_t{0});

  const auto buffers = [&](int t) {
    T* p = patterns.data() + t * narrow;
    return ForwardBuffers<T>{flats.data() + t * flat,
                             flats.data() + (threads + t) * flat,
                             keys.data() + t * flat,
                             accs.data() + t * strips.padded,
                             p,
                             p + period,
                             p + 2 * period,
                             p + 3 * period};
  };
  const auto sum = [&](int64_t i, int64_t begin, int64_t count,
                       const ForwardBuffers<T>& b) {
    softmax(a, padded, i, begin, count, b);
    if (drops) {
      dropout_mask(a.dropout, m.perm, begin, count, H, padded, b.key, b.mask);
      for (int64_t q = 0; q < count * padded; ++q) b.coef[q] *= b.mask[q];
    }
    clear(b.acc, strips.padded);
    strips.sum(rows, entries_of(m, begin, count), b.coef, padded, b.acc);
  };
  const auto write = [&](int64_t i, T* top, T* total, T* scale, const T* acc) {
    close_softmax(H, top, total, scale, a.lse + i * H);
    finish_row(strips, acc, scale, a.bias, a.out + i * HC);
  };
  for_rows(
      m, long_rows, threads,
      [&](int t, int64_t i) {
        const ForwardBuffers<T> b = buffers(t);
        sum(i, m.ptr[i], m.ptr[i + 1] - m.ptr[i], b);
        write(i, b.top, b.total, b.pattern, b.acc);
      },
      [&](int t, int64_t k) {
        const Segment& s = long_rows.segments[k];
        ForwardBuffers<T> b = buffers(t);
        b.acc = partial.data() + k * part;
        b.top = b.acc + strips.padded;
        b.total = b.top + period;
        sum(s.row, s.begin, s.count, b);
      },
      [&](int t, int64_t k) {
        const int64_t first = long_rows.first[k], last = long_rows.first[k + 1];
        const ForwardBuffers<T> b = buffers(t);
        const int64_t stride = strips.vectors * strips.lanes;
        clear(b.acc, strips.padded);
        for (int64_t h = 0; h < H; ++h) {
          T top = -kInfinity<T>, total = 0;
          for (int64_t s = first; s < last; ++s) {
            top = max(top, partial[s * part + strips.padded + h]);
          }
          for (int64_t s = first; s < last; ++s) {
            const T* acc = partial.data() + s * part;
            const T other = acc[strips.padded + h];
            const T x = other == -kInfinity<T> ? other : other - top;
            const T factor = exp<T>(splat<Vec<T>>(x))[0];
            total += factor * acc[strips.padded + period + h];
            for (int64_t c = h * stride; c < (h + 1) * stride; ++c) {
              b.acc[c] += factor * acc[c];
            }
          }
          b.top[h] = top;
          b.total[h] = total;
        }
        write(long_rows.rows[k], b.top, b.total, b.pattern, b.acc);
      });
}

// Attention, backward #########################################################

constexpr int64_t kRowBlock = 1024;  // rows of one partial sum of grad_bias

// packed[i] = a_dst, lse and D_i = <g_i, out_i - bias> of each head, side by
// side: what the gradient of an edge needs to know of its target. The gradient
// of the bias comes along.
template <class T, int W>
void pack_targets(const AttentionGradArgs<T>& grad, T* packed, int threads) {
  const AttentionArgs<T>& a = grad.forward;
  const int64_t M = a.matrix.rows, H = a.heads, C = a.channels;
  const int64_t blocks = (M + kRowBlock - 1) / kRowBlock;
  using V = Vec<T, W>;
  Array<T> sums(a.bias ? blocks * H * C : 0);
  parallel_for(threads, blocks, [&](int, int64_t block) {
    T* sum = a.bias ? sums.data() + block * H * C : nullptr;
    if (sum) fill(sum, H * C, T(0));
    for (int64_t i = block * kRowBlock; i < min(M, (block + 1) * kRowBlock);
         ++i) {
      T* p = packed + i * 3 * H;
      for (int64_t h = 0; h < H; ++h) {
        const T* g = grad.grad_out + (i * H + h) * C;
        const T* out = a.out + (i * H + h) * C;
        V dot = {};
        T rest = 0;
        int64_t c = 0;
        if (sum) {
          const T* bias = a.bias + h * C;
          T* s = sum + h * C;
          for (; c + W <= C; c += W) {
            const V gv = load<V>(g + c);
            dot += gv * (load<V>(out + c) - load<V>(bias + c));
            store(s + c, load<V>(s + c) + gv);
          }
          for (; c < C; ++c) {
            rest += g[c] * (out[c] - bias[c]);
            s[c] += g[c];
          }
        } else {
          for (; c + W <= C; c += W) dot += load<V>(g + c) * load<V>(out + c);
          for (; c < C; ++c) rest += g[c] * out[c];
        }
        const auto plus = [](V u, V v) { return u + v; };
        const T lse = a.lse[i * H + h];
        p[h] = a.a_dst ? a.a_dst[i * H + h] : T(0);
        // Weights of a row without any become exp(s - inf) = 0.
        p[H + h] = lse == -kInfinity<T> ? kInfinity<T> : lse;
        p[2 * H + h] = fold<T, W, 1>(dot, plus)[0] + rest;
      }
    }
  });
  if (!a.bias) return;
  fill(grad.grad_bias, H * C, T(0));
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t c = 0; c < H * C; ++c) {
      grad.grad_bias[c] += sums[b * H * C + c];
    }
  }
}

template <class T>
struct BackwardBuffers {
  T* a_dst;  // [block, padded heads] and a period, each
  T* lse;
  T* d;
  T* dot;   // in: <g_i, x_j>; out: the gradient of the logits
  T* coef;  // out: the weights
  T* mask;
  uint32_t* key;
  T* part;   // partial sums of the dots
  T* own;    // the row of x
  T* a_src;  // one period each
  T* sum;
};

template <class T>
struct BackwardContext {
  const AttentionArgs<T>* forward;
  const Csr* matrix;  // by source
  const T* packed;
  const int32_t* edges;  // position of each entry in the caller's order
  T* du;                 // gradient of the logits, [size, heads],
  const int32_t* place;  // and where in it that of an entry belongs
  int64_t padded;
};

// The weights of a block of edges, and the gradients of their logits.
template <class T, int kHeads>
void edge_grads(const BackwardContext<T>& x, int64_t begin, int64_t count,
                const BackwardBuffers<T>& b) {
  using F = Flat<T, kHeads>;
  using V = Vec<T>;
  constexpr int W = F::W;
  const AttentionArgs<T>& a = *x.forward;
  const int64_t H = kHeads > 0 ? kHeads : a.heads;
  const int64_t stride = kHeads > 0 ? kHeads : x.padded;
  const Entries entries = entries_of(*x.matrix, begin, count);
  for (int64_t e = 0; e < count; ++e) {
    const T* ahead = x.packed + entries.ahead(e, kAheadNarrow) * 3 * H;
    prefetch(ahead);
    prefetch(reinterpret_cast<const char*>(ahead) + kLine);
    const T* p = x.packed + entries.idx[e] * 3 * H;
    copy_heads<T, kHeads>(p, H, b.a_dst + e * stride);
    copy_heads<T, kHeads>(p + H, H, b.lse + e * stride);
    copy_heads<T, kHeads>(p + 2 * H, H, b.d + e * stride);
  }
  if (a.a_edge) {
    for (int64_t e = 0; e < count; ++e) {
      const int64_t edge = x.edges ? x.edges[begin + e] : begin + e;
      add_heads<T, kHeads>(a.a_edge + edge * H, H, b.a_dst + e * stride);
    }
  }
  const int64_t vectors = F::vectors(x.padded);
  const int64_t periods = F::periods(count);
  if (F::kEntries > 1) {
    for (int64_t q = count * H; q < periods * W; ++q) {
      b.a_dst[q] = b.d[q] = b.dot[q] = 0;
      b.lse[q] = kInfinity<T>;
    }
  }
  const bool drops = a.dropout.rate > 0.0;
  for (int64_t v = 0; v < vectors; ++v) {
    const V a_src = load<V>(b.a_src + v * W);
    V sum = load<V>(b.sum + v * W);
    for (int64_t k = 0; k < periods; ++k) {
      const int64_t q = (k * vectors + v) * W;
      const V u = a_src + load<V>(b.a_dst + q);
      const V s = leaky_relu<T>(u, a.negative_slope);
      const V alpha = exp<T>(s - load<V>(b.lse + q));
      V dp = load<V>(b.dot + q);
      V weight = alpha;
      if (drops) {
        const V mask = load<V>(b.mask + q);
        weight *= mask;
        dp *= mask;
      }
      const V ds = alpha * (dp - load<V>(b.d + q));
      const V du = u > 0 ? ds : ds * a.negative_slope;
      store(b.coef + q, weight);
      store(b.dot + q, du);
      sum += du;
    }
    store(b.sum + v * W, sum);
  }
  if (kHeads > 0 && !x.place) {
    copy(b.dot, count * H, x.du + begin * H);
    return;
  }
  for (int64_t e = 0; e < count; ++e) {
    const int64_t place = x.place ? x.place[begin + e] : begin + e;
    copy_heads<T, kHeads>(b.dot + e * stride, H, x.du + place * H);
  }
}

template <class T, int kHeads>
void fold_sum(T* sum) {
  using F = Flat<T, kHeads>;
  if (F::kEntries > 1) {
    const auto plus = [](Vec<T> p, Vec<T> q) { return p + q; };
    store(sum, F::fold_heads(load<Vec<T>>(sum), plus));
  }
}

// grad_a_dst[i] = sum of the gradients of the logits of a row's edges; entry e
// of the row has its own at place[e].
template <class T, int kHeads>
void sum_logit_grads(const T* du, Entries entries, int64_t heads,
                     T* RANKSPMM_RESTRICT out) {
  const int64_t H = kHeads > 0 ? kHeads : heads;
  if constexpr (kHeads > 0) {
    T sum[kHeads] = {};
    for (int e = 0; e < entries.count; ++e) {
      prefetch(du + entries.ahead(e, kAheadNarrow) * H);
      const T* p = du + entries.idx[e] * H;
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) sum[h] += p[h];
    }
    std::memcpy(out, sum, sizeof(sum));
  } else {
    fill(out, H, T(0));
    for (int e = 0; e < entries.count; ++e) {
      const T* p = du + entries.idx[e] * H;
      for (int64_t h = 0; h < H; ++h) out[h] += p[h];
    }
  }
}

template <class T>
struct HeadFns {
  void (*edge_grads)(const BackwardContext<T>&, int64_t, int64_t,
                     const BackwardBuffers<T>&);
  void (*spread)(const T*, int64_t, int64_t, T*);
  void (*fold_sum)(T*);
  void (*sum_logit_grads)(const T*, Entries, int64_t, T*);
};

template <class T, int kHeads>
void spread_fn(const T* value, int64_t heads, int64_t padded, T* pattern) {
  spread<T, kHeads>(value, heads, padded, pattern);
}

template <class T, int kHeads>
constexpr HeadFns<T> head_fns() {
  return {edge_grads<T, kHeads>, spread_fn<T, kHeads>, fold_sum<T, kHeads>,
          sum_logit_grads<T, kHeads>};
}

template <class T>
HeadFns<T> choose_head_fns(int64_t heads) {
  switch (heads) {
    case 1: return head_fns<T, 1>();
    case 2: return head_fns<T, 2>();
    case 4: return head_fns<T, 4>();
    case 8: return head_fns<T, 8>();
    default: return head_fns<T, 0>();
  }
}

template <class T>
void add_to(const T* from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// grad_x and grad_a_src: one gathered row of grad_out for each edge, by source,
// so that each sum has one owner.
template <class T>
void source_grads(const AttentionGradArgs<T>& grad,
                  const BackwardContext<T>& context, int threads) {
  const AttentionArgs<T>& a = grad.forward;
  const Csr& m = *context.matrix;
  const int64_t H = a.heads, HC = H * a.channels, padded = context.padded;
  const Strips<T> strips(H, a.channels, false);
  const Rows<T> rows(grad.grad_out, m.cols, HC, strips.over_read());
  const LongRows long_rows(m);
  const DotFn<T> dots = choose_dots(strips);
  const HeadFns<T> fns = choose_head_fns<T>(H);
  const int64_t period = round_up(padded, kLanes<T>);
  const int64_t block = block_of(strips);
  const int64_t flat = block * padded + period;
  const bool drops = a.dropout.rate > 0.0;

  const int64_t room = 6 * flat + flat * strips.lanes + strips.padded +
                       2 * period;
  const int64_t part = strips.padded + period;
  Array<T> all(threads * room), accs(threads * part);
  Array<uint32_t> keys(drops ? threads * flat : 0);
  Array<T> partial(long_rows.num_segments * part);
  fill(all.data(), threads * room, T(0));
  if (drops) fill(keys.data(), threads * flat, uint32_t{0});

  const auto buffers = [&](int t, T* acc) {
    BackwardBuffers<T> b;
    T* p = all.data() + t * room;
    const auto take = [&p](int64_t n) {
      T* taken = p;
      p += n;
      return taken;
    };
    b.part = take(flat * strips.lanes);
    b.a_dst = take(flat);
    b.lse = take(flat);
    b.d = take(flat);
    b.dot = take(flat);
    b.coef = take(flat);
    b.mask = take(flat);
    b.own = take(strips.padded);
    b.a_src = take(period);
    b.key = keys.data() + t * flat;
    b.sum = acc + strips.padded;
    return b;
  };
  const auto run = [&](int t, int64_t j, int64_t begin, int64_t count,
                       T* acc) {
    const BackwardBuffers<T> b = buffers(t, acc);
    clear(acc, part);
    const T* own = pad_row(strips, a.x + j * HC, b.own);
    fns.spread(a.a_src + j * H, H, padded, b.a_src);
    for (int64_t e = begin; e < begin + count; e += block) {
      const int64_t n = min(block, begin + count - e);
      const Entries entries = entries_of(m, e, n);
      dots(strips, rows, entries, own, padded, b.part, b.dot);
      if (drops) {
        dropout_mask(a.dropout, context.edges, e, n, H, padded, b.key, b.mask);
      }
      fns.edge_grads(context, e, n, b);
      strips.sum(rows, entries, b.coef, padded, acc);
    }
  };
  const auto write = [&](int64_t j, T* acc) {
    T* sum = acc + strips.padded;
    fns.fold_sum(sum);
    copy(sum, H, grad.grad_a_src + j * H);
    finish_row(strips, acc, static_cast<const T*>(nullptr),
               static_cast<const T*>(nullptr), grad.grad_x + j * HC);
  };
  for_rows(
      m, long_rows, threads,
      [&](int t, int64_t j) {
        T* acc = accs.data() + t * part;
        run(t, j, m.ptr[j], m.ptr[j + 1] - m.ptr[j], acc);
        write(j, acc);
      },
      [&](int t, int64_t k) {
        const Segment& s = long_rows.segments[k];
        run(t, s.row, s.begin, s.count, partial.data() + k * part);
      },
      [&](int, int64_t k) {
        const int64_t first = long_rows.first[k];
        T* acc = partial.data() + first * part;
        for (int64_t s = first + 1; s < long_rows.first[k + 1]; ++s) {
          add_to(partial.data() + s * part, part, acc);
        }
        write(long_rows.rows[k], acc);
      });
}

// grad_a_dst, by target. The matrix is that of the forward pass with the place
// of each entry's gradient instead of its column.
template <class T>
void target_grads(const AttentionGradArgs<T>& grad, const T* du,
                  const Csr& m, int threads) {
  const int64_t H = grad.forward.heads;
  const LongRows long_rows(m);
  const HeadFns<T> fns = choose_head_fns<T>(H);
  Array<T> partial(long_rows.num_segments * H);
  for_rows(
      m, long_rows, threads,
      [&](int, int64_t i) {
        fns.sum_logit_grads(
            du, entries_of(m, m.ptr[i], m.ptr[i + 1] - m.ptr[i]), H,
            grad.grad_a_dst + i * H);
      },
      [&](int, int64_t k) {
        const Segment& s = long_rows.segments[k];
        fns.sum_logit_grads(du, entries_of(m, s.begin, s.count), H,
                            partial.data() + k * H);
      },
      [&](int, int64_t k) {
        T* out = grad.grad_a_dst + long_rows.rows[k] * H;
        fill(out, H, T(0));
        for (int64_t s = long_rows.first[k]; s < long_rows.first[k + 1]; ++s) {
          add_to(partial.data() + s * H, H, out);
        }
      });
}

// place[e] = the entry of t that is the e-th one of m: both lead to the
// caller's order. If they are at odds the places are wrong, but inside.
void invert_places(const Csr& m, const Csr& t, int32_t* place, int threads) {
  constexpr int64_t kPart = 1 << 16;
  const int64_t parts = (m.size + kPart - 1) / kPart;
  Array<int32_t> inverse(m.size);
  fill(inverse.data(), m.size, int32_t{0});
  parallel_for(threads, parts, [&](int, int64_t p) {
    for (int64_t k = p * kPart; k < min(t.count, (p + 1) * kPart); ++k) {
      inverse[t.perm ? t.perm[k] : k] = static_cast<int32_t>(k);
    }
  });
  parallel_for(threads, parts, [&](int, int64_t p) {
    for (int64_t e = p * kPart; e < min(m.count, (p + 1) * kPart); ++e) {
      place[e] = inverse[m.perm ? m.perm[e] : e];
    }
  });
}

template <class T>
void attention_grad(const AttentionGradArgs<T>& grad, int threads) {
  const AttentionArgs<T>& a = grad.forward;
  const Csr& m = a.matrix;
  const int64_t H = a.heads;
  threads = usable_threads(threads, work_of<T>(m, H, a.channels));
  prefer_large_pages(grad.grad_x, m.cols * H * a.channels * sizeof(T));

  // The gradients of the logits, [entries, heads], are written by source and
  // read by target. With logits for edges they are a result in the caller's
  // order anyway; without, in the order by source, which is written in one go.
  const bool in_callers_order = a.a_edge != nullptr;
  const bool given = grad.transposed.ptr != nullptr;
  const bool needs_edges = in_callers_order || a.dropout.rate > 0.0;
  const bool needs_place = a.a_dst != nullptr && !in_callers_order;

  Array<int64_t> ptr(given ? 0 : m.cols + 1);
  Array<int32_t> row(given ? 0 : m.size);
  Array<int32_t> edge(!given && needs_edges ? m.size : 0);
  Array<int32_t> place(needs_place ? m.size : 0);
  Csr by_source = grad.transposed;
  if (!given) {
    transpose(m, ptr.data(), row.data(), edge.data(), place.data(), threads);
    by_source = {ptr.data(), row.data(), edge.data(),
                 m.cols,     m.rows,     m.size, m.count};
  } else if (needs_place) {
    invert_places(m, grad.transposed, place.data(), threads);
  }

  Array<T> packed(m.rows * 3 * H);
  if (a.channels < kLanes<T>) {
    pack_targets<T, max(2, kLanes<T> / 2)>(grad, packed.data(), threads);
  } else {
    pack_targets<T, kLanes<T>>(grad, packed.data(), threads);
  }

  Array<T> own_du(in_callers_order ? 0 : m.size * H);
  T* du = in_callers_order ? grad.grad_a_edge : own_du.data();
  if (in_callers_order && m.count < m.size) fill(du, m.size * H, T(0));
  const BackwardContext<T> context{
      &a,
      &by_source,
      packed.data(),
      by_source.perm,
      du,
      in_callers_order ? by_source.perm : nullptr,
      pad_heads<T>(H)};
  source_grads(grad, context, threads);

  if (!a.a_dst) return;
  Csr by_target = m;
  if (needs_place) by_target.idx = place.data();
  if (in_callers_order && m.perm) by_target.idx = m.perm;
  Array<int32_t> identity(in_callers_order && !m.perm ? m.size : 0);
  if (in_callers_order && !m.perm) {
    for (int64_t e = 0; e < m.size; ++e) {
      identity[e] = static_cast<int32_t>(e);
    }
    by_target.idx = identity.data();
  }
  target_grads(grad, du, by_target, threads);
}

template <class T>
void exp_array(T* x, int64_t n) {
  constexpr int L = kLanes<T>;
  using V = Vec<T>;
  int64_t i = 0;
  for (; i + L <= n; i += L) store(x + i, exp<T>(load<V>(x + i)));
  if (i == n) return;
  T tail[L] = {};
  std::copy(x + i, x + n, tail);
  store(tail, exp<T>(load<V>(tail)));
  std::copy(tail, tail + (n - i), x + i);
}

template <class T>
constexpr Kernels<T> table() {
  return {spmm<T>, sddmm<T>, attention<T>, attention_grad<T>, exp_array<T>};
}

}  // namespace

#define RANKSPMM_STRING(name) RANKSPMM_STRING_(name)
#define RANKSPMM_STRING_(name) #name

namespace RANKSPMM_LEVEL {
extern const Level kLevel;
const Level kLevel = {RANKSPMM_STRING(RANKSPMM_LEVEL), table<float>(),
                      table<double>()};
}  // namespace RANKSPMM_LEVEL

}  // namespace rankspmm
