#include "rank.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "memory.h"
#include "parallel.h"

namespace rankspmm {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Work #######################################################################

// Runs of whole groups with about this many entries go to a thread together.
constexpr int64_t kChunk = 1 << 13;

int64_t first_group(const Groups& g, int64_t entry) {
  return std::lower_bound(g.ptr, g.ptr + g.count, entry) - g.ptr;
}

// Calls f(chunk, begin, end) for groups begin to end. The chunks depend on the
// groups alone, so that sums over them do not depend on the threads.
template <class F>
void for_chunks(const Groups& g, int threads, const F& f) {
  const int64_t chunks = g.size / kChunk + 1;
  threads = usable_threads(threads, g.size);
  parallel_for(threads, chunks, [&](int, int64_t c) {
    const int64_t begin = c == 0 ? 0 : first_group(g, c * kChunk);
    const int64_t end =
        c + 1 == chunks ? g.count : first_group(g, (c + 1) * kChunk);
    if (begin < end) f(c, begin, end);
  });
}

int64_t longest_group(const Groups& g, int64_t begin, int64_t end) {
  int64_t longest = 0;
  for (int64_t i = begin; i < end; ++i) {
    longest = std::max(longest, g.ptr[i + 1] - g.ptr[i]);
  }
  return longest;
}

int32_t position(const Groups& g, int64_t k) {
  return g.perm ? g.perm[k] : static_cast<int32_t>(k);
}

// The entries of a group side by side, and back. In a large array of edges in
// any order each entry of a group is on a cache line of its own: it is to be
// fetched once, in the order of the positions, and not in that of the scores.
template <class T>
void gather(const Groups& g, int64_t group, const T* from, T* to) {
  const int64_t begin = g.ptr[group], n = g.ptr[group + 1] - begin;
  for (int64_t i = 0; i < n; ++i) to[i] = from[position(g, begin + i)];
}

template <class T>
void scatter(const Groups& g, int64_t group, const T* from, T* to) {
  const int64_t begin = g.ptr[group], n = g.ptr[group + 1] - begin;
  for (int64_t i = 0; i < n; ++i) to[position(g, begin + i)] = from[i];
}

// Sorting ####################################################################

// Integers that order as the scores do, falling: a comparison of floating
// point numbers would be confused by NaN. -0 counts as 0.
uint32_t falling(float x) {
  x += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

uint64_t falling(double x) {
  x += 0.0;
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint64_t sign = uint64_t{1} << 63;
  return bits & sign ? bits : ~bits & (sign - 1);
}

uint64_t falling(int64_t x) {
  return ~(static_cast<uint64_t>(x) ^ (uint64_t{1} << 63));
}

template <class S>
struct Item {
  decltype(falling(S())) key;
  int32_t place;  // in the group
  bool operator<(const Item& other) const {
    return key != other.key ? key < other.key : place < other.place;
  }
};

constexpr int64_t kRadixSort = 48;  // entries from which it pays

// Sorts one group after the other, in memory for the longest.
template <class S>
class Sorter {
 public:
  explicit Sorter(int64_t longest)
      : items_(longest), other_(longest >= kRadixSort ? longest : 0) {}

  const Item<S>* sort(const S* score, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      items_[i] = {falling(score[i]), static_cast<int32_t>(i)};
    }
    if (n >= kRadixSort) return radix_sort(n);
    std::sort(items_.data(), items_.data() + n);
    return items_.data();
  }

 private:
  // Byte by byte from the lowest on; a byte that all keys share costs nothing.
  const Item<S>* radix_sort(int64_t n) {
    Item<S>* from = items_.data();
    Item<S>* to = other_.data();
    std::memset(counts_, 0, sizeof counts_);
    for (int64_t i = 0; i < n; ++i) {
      for (int b = 0; b < kBytes; ++b) ++counts_[b][byte(from[i], b)];
    }
    for (int b = 0; b < kBytes; ++b) {
      int32_t* next = counts_[b];
      if (next[byte(from[0], b)] == n) continue;
      int32_t start = 0;
      for (int value = 0; value < 256; ++value) {
        const int32_t count = next[value];
        next[value] = start;
        start += count;
      }
      for (int64_t i = 0; i < n; ++i) to[next[byte(from[i], b)]++] = from[i];
      std::swap(from, to);
    }
    return from;
  }

  static int byte(const Item<S>& item, int b) {
    return static_cast<int>(item.key >> (8 * b) & 255);
  }

  static constexpr int kBytes = sizeof(Item<S>::key);
  Array<Item<S>> items_;
  Array<Item<S>> other_;
  int32_t counts_[kBytes][256];
};

// Soft ranks #################################################################

// exp(-(s_(k-1) - s_k) / tau) for 0 < k < n, and 0 at both ends.
template <class T>
void fill_falls(const T* s, T tau, int64_t n, T* fall) {
  for (int64_t k = 1; k < n; ++k) {
    // Equal infinities are as close as other equal scores.
    fall[k] = s[k] == s[k - 1] ? T{0} : (s[k] - s[k - 1]) / tau;
  }
  kernels<T>().exp(fall + 1, n - 1);
  fall[0] = fall[n] = 0;
}

// Sums run in double: their terms are of one sign and may be many.
template <class T>
void rank_group(const T* fall, int64_t n, double* rank) {
  double up = 0, dn = 0;
  for (int64_t k = 0; k < n; ++k) {
    up = k == 0 ? 0.0 : fall[k] * (1 + up);
    rank[k] = static_cast<double>(k + 1) - up / 2;
  }
  for (int64_t k = n - 1; k >= 0; --k) {
    dn = k == n - 1 ? 0.0 : fall[k + 1] * (1 + dn);
    rank[k] += dn / 2;
  }
}

template <class T>
void grad_group(const T* fall, const T* v, int64_t n, double* out) {
  double up = 0, u = 0, dn = 0, w = 0;
  for (int64_t k = 0; k < n; ++k) {
    if (k > 0) {
      up = fall[k] * (1 + up);
      u = fall[k] * (v[k - 1] + u);
    }
    out[k] = u - v[k] * up;
  }
  for (int64_t k = n - 1; k >= 0; --k) {
    if (k < n - 1) {
      dn = fall[k + 1] * (1 + dn);
      w = fall[k + 1] * (v[k + 1] + w);
    }
    out[k] += w - v[k] * dn;
  }
}

// Overlap ####################################################################

// S(k) = sum of w_d / d and W(k) = sum of w_d over d <= k, side by side: both
// are wanted at ranks that nobody can guess.
struct Depth {
  double s, w;
};

class DepthTable {
 public:
  DepthTable(double p, int64_t depth) : at_(depth + 1) {
    at_[0] = {0, 0};
    double weight = p == 1 ? 1 : 1 - p;
    for (int64_t d = 1; d <= depth; ++d) {
      at_[d] = {at_[d - 1].s + weight / static_cast<double>(d),
                at_[d - 1].w + weight};
      weight *= p;
    }
  }
  const Depth* data() const { return at_.data(); }

 private:
  Array<Depth> at_;
};

// How much less than they could the entries of one tie group add to the
// overlap, if their targets span the ranks `top` to `bottom` of n.
struct Tie {
  const Depth* at;
  int64_t n, top, bottom;
  double per_rank;  // 1 / (number of entries)

  // Of the entry with this real-valued rank; and the slope of the overlap.
  // Without a branch: where an entry is among its ties nobody can guess.
  double loss(double real, double* slope) const {
    const int64_t k =
        std::min(n, static_cast<int64_t>(std::min(real, 2147483647.0)));
    const int64_t m = std::max(k, top);
    const int64_t low = std::min(m, bottom) - 1, high = std::max(m, bottom) - 1;
    const double share =
        std::min(1.0, std::max<int64_t>(0, k - top + 1) * per_rank);
    *slope = (at[k - 1].s - at[k].s) * share;
    const double rise = (at[low].w - at[top - 1].w) -
                        (top - 1) * (at[low].s - at[top - 1].s);
    return at[high].s - at[bottom - 1].s + rise * per_rank -
           (real - k) * *slope;
  }
};

template <class S>
bool is_nan(S x) {
  return x != x;
}

// Whether a rank is not a number that one can count to, or a target none.
template <class T, class S>
bool is_broken(const T* rank, const S* target, int64_t n) {
  bool broken = false;
  for (int64_t i = 0; i < n; ++i) {
    broken |= !(rank[i] >= 1 && rank[i] <= std::numeric_limits<T>::max()) |
              is_nan(target[i]);
  }
  return broken;
}

// Calls f(begin, end) for each run of equal scores among n sorted items.
template <class S, class F>
void for_runs(const Item<S>* items, int64_t n, const F& f) {
  for (int64_t low = 0, high; low < n; low = high) {
    for (high = low + 1; high < n && items[high].key == items[low].key;) {
      ++high;
    }
    f(low, high);
  }
}

// Temperatures ###############################################################

struct Moments {
  double count = 0, mean = 0, square = 0;  // square: sum of (x - mean)^2

  void add(const Moments& other) {
    if (other.count == 0) return;
    const double total = count + other.count, delta = other.mean - mean;
    square += other.square + delta * delta * count * other.count / total;
    mean += delta * other.count / total;
    count = total;
  }
};

// Of the scores times `unit`; NaN if one is not finite.
template <class T>
Moments moments(const Groups& g, int64_t group, const T* score, double unit) {
  const int64_t begin = g.ptr[group], n = g.ptr[group + 1] - begin;
  if (n == 0) return {};
  // One pass: no score is farther than sqrt(n) deviations from the mean, so
  // that the difference to any of them is as good as that to the mean.
  const double first = score[position(g, begin)] * unit;
  double sum = 0, square = 0;
  for (int64_t k = begin; k < begin + n; ++k) {
    const double delta = score[position(g, k)] * unit - first;
    sum += delta;
    square += delta * delta;
  }
  const double count = static_cast<double>(n), mean = sum / count;
  return {count, first + mean, std::max(0.0, square - mean * sum) + 0 * square};
}

// A power of two that keeps the squares of the scores from overflowing.
double scale_of(const float*, int64_t, int) { return 1; }  // no float does
double scale_of(const double* score, int64_t size, int threads) {
  const int64_t chunks = size / kChunk + 1;
  Array<double> most(chunks);
  parallel_for(usable_threads(threads, size), chunks, [&](int, int64_t c) {
    double top = 1;
    const int64_t end = std::min(size, (c + 1) * kChunk);
    for (int64_t i = c * kChunk; i < end; ++i) {
      const double x = std::abs(score[i]);
      if (x <= std::numeric_limits<double>::max()) top = std::max(top, x);
    }
    most[c] = top;
  });
  // (Not by log2, which rounds up to 2^1024 and more.)
  return std::ldexp(1.0, std::ilogb(*std::max_element(
                             most.data(), most.data() + chunks)));
}

}  // namespace

void check(const Groups& g, const char* perm_name, int threads) {
  int64_t last = 0;
  bool rises = g.ptr[0] == 0 && g.ptr[g.count] == g.size;
  for (int64_t i = 0; i <= g.count && rises; ++i) {
    rises = g.ptr[i] >= last;
    last = g.ptr[i];
  }
  if (!rises) {
    throw std::invalid_argument("'ptr' must rise from 0 to " +
                                std::to_string(g.size));
  }
  if (!g.perm) return;
  std::atomic<bool> inside{true};
  const int64_t chunks = g.size / kChunk + 1;
  parallel_for(usable_threads(threads, g.size), chunks, [&](int, int64_t c) {
    const int64_t end = std::min(g.size, (c + 1) * kChunk);
    bool all = true;
    for (int64_t k = c * kChunk; k < end; ++k) {
      all &= g.perm[k] >= 0 && g.perm[k] < g.size;
    }
    if (!all) inside = false;
  });
  if (!inside) {
    throw std::invalid_argument(std::string("'") + perm_name +
                                "' must hold positions from 0 to " +
                                std::to_string(g.size - 1));
  }
}

template <class T>
void soft_rank(const Groups& g, const T* score, const T* temperature, T* rank,
               int32_t* order, int threads) {
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    const int64_t longest = longest_group(g, begin, end);
    Sorter<T> sorter(longest);
    Array<T> local(longest), s(longest), fall(longest + 1);
    Array<double> ranks(longest);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = g.ptr[i], n = g.ptr[i + 1] - start;
      if (n == 0) continue;
      gather(g, i, score, local.data());
      const Item<T>* items = sorter.sort(local.data(), n);
      for (int64_t k = 0; k < n; ++k) {
        order[start + k] = position(g, start + items[k].place);
        s[k] = local[items[k].place];
      }
      fill_falls(s.data(), temperature[i], n, fall.data());
      rank_group(fall.data(), n, ranks.data());
      // An entry that is alone has nobody to hear from that it is broken.
      const bool broken = is_nan(s[0] + temperature[i]);
      for (int64_t k = 0; k < n; ++k) {
        local[items[k].place] = static_cast<T>(broken ? kNaN : ranks[k]);
      }
      scatter(g, i, local.data(), rank);
    }
  });
}

template <class T>
void soft_rank_grad(const Groups& g, const T* grad, const T* score,
                    const T* temperature, T* out, int threads) {
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    const int64_t longest = longest_group(g, begin, end);
    Array<T> s(longest), v(longest), fall(longest + 1);
    Array<double> grads(longest);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = g.ptr[i], n = g.ptr[i + 1] - start;
      if (n == 0) continue;
      for (int64_t k = 0; k < n; ++k) {
        s[k] = score[position(g, start + k)];
        v[k] = grad[position(g, start + k)];
      }
      fill_falls(s.data(), temperature[i], n, fall.data());
      grad_group(fall.data(), v.data(), n, grads.data());
      const double factor = 1 / (2 * static_cast<double>(temperature[i]));
      for (int64_t k = 0; k < n; ++k) {
        out[position(g, start + k)] = static_cast<T>(grads[k] * factor);
      }
    }
  });
}

template <class T, class S>
void overlap(const Groups& g, const T* rank, const S* target, double p, T* rbo,
             T* slope, int threads) {
  const DepthTable table(p, longest_group(g, 0, g.count));
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    const int64_t longest = longest_group(g, begin, end);
    Sorter<S> sorter(longest);
    Array<S> targets(longest);
    Array<T> local(longest);  // ranks, then slopes
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = g.ptr[i + 1] - g.ptr[i];
      rbo[i] = 1;
      if (n == 0) continue;
      const double share = p == 1 ? 1 / static_cast<double>(n) : 1;
      gather(g, i, target, targets.data());
      gather(g, i, rank, local.data());
      const bool broken = is_broken(local.data(), targets.data(), n);
      if (broken) std::fill(local.data(), local.data() + n, T{1});
      const Item<S>* items = sorter.sort(targets.data(), n);
      double loss = 0;
      for_runs(items, n, [&](int64_t low, int64_t high) {
        const Tie tie{table.data(), n, low + 1, high,
                      1 / static_cast<double>(high - low)};
        for (int64_t k = low; k < high; ++k) {
          T& mine = local[items[k].place];
          double slope;
          loss += tie.loss(mine, &slope);
          mine = static_cast<T>(share * slope);
        }
      });
      rbo[i] = static_cast<T>(1 - std::max(0.0, share * loss));
      if (broken) {
        rbo[i] = static_cast<T>(kNaN);
        std::fill(local.data(), local.data() + n, rbo[i]);
      }
      scatter(g, i, local.data(), slope);
    }
  });
}

template <class T>
void overlap_grad(const Groups& g, const T* grad, const T* slope, T* out,
                  int threads) {
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = g.ptr[i]; k < g.ptr[i + 1]; ++k) {
        out[position(g, k)] = grad[i] * slope[position(g, k)];
      }
    }
  });
}

template <class T>
void temperatures(const Groups& g, const T* score, double temperature,
                  bool relative, T* out, int threads) {
  const double scale = scale_of(score, g.size, threads);
  const int64_t chunks = g.size / kChunk + 1;
  Array<Moments> parts(chunks);
  std::fill(parts.data(), parts.data() + chunks, Moments());
  Array<double> std(g.count);
  for_chunks(g, threads, [&](int64_t c, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Moments m = moments(g, i, score, 1 / scale);
      std[i] = std::sqrt(m.square / std::max(m.count, 1.0));
      if (std::isfinite(std[i])) parts[c].add(m);
    }
  });
  Moments all;
  for (int64_t c = 0; c < chunks; ++c) all.add(parts[c]);
  const double spread = std::sqrt(all.square / std::max(all.count, 1.0));
  const double floor = 1e-3 * spread + 1e-6 / scale;
  for (int64_t i = 0; i < g.count; ++i) {
    const double unit = relative ? std::max(std[i], floor) * scale : 1;
    const double tau =
        std::min(std::max(temperature * unit,
                          double{std::numeric_limits<T>::min()}),
                 double{std::numeric_limits<T>::max()});
    out[i] = static_cast<T>(std::isfinite(std[i]) ? tau : kNaN);
  }
}

template <class S>
void tie_spans(const Groups& g, const S* score, int32_t* first, int32_t* last,
               int threads) {
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    const int64_t longest = longest_group(g, begin, end);
    Sorter<S> sorter(longest);
    Array<S> local(longest);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = g.ptr[i + 1] - g.ptr[i];
      gather(g, i, score, local.data());
      const Item<S>* items = sorter.sort(local.data(), n);
      for_runs(items, n, [&](int64_t low, int64_t high) {
        for (int64_t k = low; k < high; ++k) {
          const int32_t e = position(g, g.ptr[i] + items[k].place);
          first[e] = static_cast<int32_t>(low + 1);
          last[e] = static_cast<int32_t>(high);
        }
      });
    }
  });
}

#define RANKSPMM_INSTANTIATE(T)                                              \
  template void soft_rank(const Groups&, const T*, const T*, T*, int32_t*,   \
                          int);                                              \
  template void soft_rank_grad(const Groups&, const T*, const T*, const T*,  \
                               T*, int);                                     \
  template void temperatures(const Groups&, const T*, double, bool, T*, int); \
  template void overlap_grad(const Groups&, const T*, const T*, T*, int);    \
  template void overlap(const Groups&, const T*, const float*, double, T*,   \
                        T*, int);                                            \
  template void overlap(const Groups&, const T*, const double*, double, T*,  \
                        T*, int);                                            \
  template void overlap(const Groups&, const T*, const int64_t*, double, T*, \
                        T*, int);
RANKSPMM_INSTANTIATE(float)
RANKSPMM_INSTANTIATE(double)
template void tie_spans(const Groups&, const float*, int32_t*, int32_t*, int);
template void tie_spans(const Groups&, const double*, int32_t*, int32_t*, int);
template void tie_spans(const Groups&, const int64_t*, int32_t*, int32_t*,
                        int);

}  // namespace rankspmm
