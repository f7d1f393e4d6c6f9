#include "rank.h"

#include <algorithm>
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

// Agreement ##################################################################

// What one depth cuts off a list: an entry among the ties that it cuts counts
// for `share`; `norm` is what the variant divides by.
struct Cut {
  double share, norm;
};

// How many entries begin (or, if negative, cease) to count at a depth: in
// front of both cuts, in front of one and among the ties of the other, or
// among the ties of both.
struct Steps {
  int64_t full, first, second, both;

  void add(const Steps& other) {
    full += other.full;
    first += other.first;
    second += other.second;
    both += other.both;
  }
};

// Depth by depth, for one group after the other. Sums over entries are whole
// numbers times shares, as in ops/agreement.py.
template <class T, class S>
class Agreement {
 public:
  Agreement(int64_t longest, const double* weight, char ties)
      : pred_(longest),
        target_(longest),
        span_(longest),
        cut_(longest + 1),
        other_(longest + 1),
        steps_(longest + 2),
        weight_(weight),
        ties_(ties) {}

  // `p_n` is what depths beyond the end weigh, where the lists agree.
  double of(const T* pred, const S* target, int64_t n, double scale,
            double p_n) {
    std::fill(steps_.data(), steps_.data() + n + 2, Steps{});
    const Item<T>* items = pred_.sort(pred, n);
    for_runs(items, n, [&](int64_t low, int64_t high) {
      cut(low, high, cut_.data());
      for (int64_t k = low; k < high; ++k) {
        span_[items[k].place] = {low + 1, high};
      }
    });
    const Item<S>* others = target_.sort(target, n);
    for_runs(others, n, [&](int64_t low, int64_t high) {
      cut(low, high, other_.data());
      for (int64_t k = low; k < high; ++k) {
        count(span_[others[k].place], {low + 1, high}, n);
      }
    });
    return sum(n, scale, p_n);
  }

 private:
  struct Span {
    int64_t first, last;
  };

  // The depths low + 1 to high cut the ties low + 1 to high.
  void cut(int64_t low, int64_t high, Cut* cut) {
    const double size = static_cast<double>(high - low);
    for (int64_t d = low + 1; d <= high; ++d) {
      const double share = static_cast<double>(d - low) / size;
      const double among = ties_ == 'w' ? size : share * share * size;
      cut[d] = {share, static_cast<double>(low) + among};
    }
  }

  // From which depth to which an entry counts, and for what.
  void count(const Span& a, const Span& b, int64_t n) {
    if (ties_ == 'w') return span(&Steps::full, std::max(a.first, b.first), n);
    span(&Steps::full, std::max(a.last, b.last) + 1, n);
    span(&Steps::first, std::max(a.first, b.last + 1), a.last);
    span(&Steps::second, std::max(b.first, a.last + 1), b.last);
    span(&Steps::both, std::max(a.first, b.first), std::min(a.last, b.last));
  }

  void span(int64_t Steps::* what, int64_t first, int64_t last) {
    if (first > last) return;
    ++(steps_[first].*what);
    --(steps_[last + 1].*what);
  }

  double sum(int64_t n, double scale, double p_n) {
    Steps now{};
    double here = p_n, missing = 0;
    for (int64_t d = 1; d <= n; ++d) {
      now.add(steps_[d]);
      const double a = cut_[d].share, b = other_[d].share;
      double x = static_cast<double>(now.full);
      if (ties_ != 'w') {
        x += static_cast<double>(now.first) * a;
        x += static_cast<double>(now.second) * b;
        x += a * b * static_cast<double>(now.both);
      }
      const double agreed = agree(x, d);
      here += scale * weight_[d] * agreed;
      missing += scale * weight_[d] * (1 - agreed);
    }
    // From both sides, so that it is exact for 0 and for 1.
    return std::clamp(here < 0.5 ? here : 1 - missing, 0.0, 1.0);
  }

  double agree(double x, int64_t d) const {
    if (ties_ == 'a') return x / static_cast<double>(d);
    const double p = cut_[d].norm, q = other_[d].norm;
    return ties_ == 'b' ? x / std::sqrt(p * q) : 2 * x / (p + q);
  }

  Sorter<T> pred_;
  Sorter<S> target_;
  Array<Span> span_;
  Array<Cut> cut_, other_;
  Array<Steps> steps_;
  const double* weight_;
  char ties_;
};

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
  const double first = score[begin] * unit;
  double sum = 0, square = 0;
  for (int64_t k = begin; k < begin + n; ++k) {
    const double delta = score[k] * unit - first;
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
  return std::exp2(
      std::floor(std::log2(*std::max_element(most.data(),
                                             most.data() + chunks))));
}

}  // namespace

void check(const Groups& g) {
  bool rises = g.ptr[0] == 0 && g.ptr[g.count] == g.size;
  for (int64_t i = 0; i < g.count; ++i) rises &= g.ptr[i] <= g.ptr[i + 1];
  if (!rises) {
    throw std::invalid_argument("'ptr' must rise from 0 to " +
                                std::to_string(g.size));
  }
}

template <class T>
void soft_rank(const Groups& g, const T* score, const T* temperature, T* rank,
               int32_t* order, int threads) {
  prefer_large_pages(rank, g.size * sizeof(T));
  prefer_large_pages(order, g.size * sizeof(int32_t));
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    const int64_t longest = longest_group(g, begin, end);
    Sorter<T> sorter(longest);
    Array<T> s(longest), fall(longest + 1);
    Array<double> ranks(longest);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = g.ptr[i], n = g.ptr[i + 1] - start;
      if (n == 0) continue;
      const Item<T>* items = sorter.sort(score + start, n);
      for (int64_t k = 0; k < n; ++k) {
        order[start + k] = static_cast<int32_t>(start + items[k].place);
        s[k] = score[start + items[k].place];
      }
      fill_falls(s.data(), temperature[i], n, fall.data());
      rank_group(fall.data(), n, ranks.data());
      // An entry that is alone has nobody to hear from that it is broken.
      const bool broken = is_nan(s[0] + temperature[i]);
      for (int64_t k = 0; k < n; ++k) {
        rank[order[start + k]] = static_cast<T>(broken ? kNaN : ranks[k]);
      }
    }
  });
}

template <class T>
void soft_rank_grad(const Groups& g, const int32_t* order, const T* grad,
                    const T* score, const T* temperature, T* out,
                    int threads) {
  prefer_large_pages(out, g.size * sizeof(T));
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    const int64_t longest = longest_group(g, begin, end);
    Array<T> s(longest), v(longest), fall(longest + 1);
    Array<double> grads(longest);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = g.ptr[i], n = g.ptr[i + 1] - start;
      if (n == 0) continue;
      for (int64_t k = 0; k < n; ++k) {
        s[k] = score[order[start + k]];
        v[k] = grad[order[start + k]];
      }
      fill_falls(s.data(), temperature[i], n, fall.data());
      grad_group(fall.data(), v.data(), n, grads.data());
      const double factor = 1 / (2 * static_cast<double>(temperature[i]));
      for (int64_t k = 0; k < n; ++k) {
        out[order[start + k]] = static_cast<T>(grads[k] * factor);
      }
    }
  });
}

template <class T, class S>
void overlap(const Groups& g, const T* rank, const S* target, double p, T* rbo,
             T* slope, int threads) {
  prefer_large_pages(slope, g.size * sizeof(T));
  const DepthTable table(p, longest_group(g, 0, g.count));
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    Sorter<S> sorter(longest_group(g, begin, end));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = g.ptr[i], n = g.ptr[i + 1] - start;
      rbo[i] = 1;
      if (n == 0) continue;
      if (is_broken(rank + start, target + start, n)) {
        rbo[i] = static_cast<T>(kNaN);
        std::fill(slope + start, slope + start + n, rbo[i]);
        continue;
      }
      const double share = p == 1 ? 1 / static_cast<double>(n) : 1;
      const Item<S>* items = sorter.sort(target + start, n);
      double loss = 0;
      for_runs(items, n, [&](int64_t low, int64_t high) {
        const Tie tie{table.data(), n, low + 1, high,
                      1 / static_cast<double>(high - low)};
        for (int64_t k = low; k < high; ++k) {
          const int64_t e = start + items[k].place;
          double fall;
          loss += tie.loss(rank[e], &fall);
          slope[e] = static_cast<T>(share * fall);
        }
      });
      rbo[i] = static_cast<T>(1 - std::max(0.0, share * loss));
    }
  });
}

template <class T>
void overlap_grad(const Groups& g, const T* grad, const T* slope, T* out,
                  int threads) {
  prefer_large_pages(out, g.size * sizeof(T));
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = g.ptr[i]; k < g.ptr[i + 1]; ++k) {
        out[k] = grad[i] * slope[k];
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

template <class T, class S>
void agreement(const Groups& g, const T* pred, const S* target, double p,
               char ties, double* rbo, int threads) {
  const int64_t longest = longest_group(g, 0, g.count);
  Array<double> weight(longest + 1);
  for (int64_t d = 1; d <= longest; ++d) {
    weight[d] = p == 1 ? 1 : (1 - p) * std::pow(p, static_cast<double>(d - 1));
  }
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    Agreement<T, S> agreement(longest_group(g, begin, end), weight.data(),
                              ties);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = g.ptr[i], n = g.ptr[i + 1] - start;
      bool broken = n == 0;
      for (int64_t k = start; k < start + n; ++k) {
        broken |= is_nan(pred[k]) | is_nan(target[k]);
      }
      rbo[i] = kNaN;
      if (broken) continue;
      const double size = static_cast<double>(n);
      rbo[i] = agreement.of(pred + start, target + start, n,
                            p == 1 ? 1 / size : 1,
                            p == 1 ? 0 : std::pow(p, size));
    }
  });
}

template <class S>
void tie_spans(const Groups& g, const S* score, int32_t* first, int32_t* last,
               int threads) {
  for_chunks(g, threads, [&](int64_t, int64_t begin, int64_t end) {
    Sorter<S> sorter(longest_group(g, begin, end));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = g.ptr[i], n = g.ptr[i + 1] - start;
      const Item<S>* items = sorter.sort(score + start, n);
      for_runs(items, n, [&](int64_t low, int64_t high) {
        for (int64_t k = low; k < high; ++k) {
          first[start + items[k].place] = static_cast<int32_t>(low + 1);
          last[start + items[k].place] = static_cast<int32_t>(high);
        }
      });
    }
  });
}

#define RANKSPMM_INSTANTIATE(T)                                              \
  template void soft_rank(const Groups&, const T*, const T*, T*, int32_t*,   \
                          int);                                              \
  template void soft_rank_grad(const Groups&, const int32_t*, const T*,      \
                               const T*, const T*, T*, int);                 \
  template void temperatures(const Groups&, const T*, double, bool, T*, int); \
  template void overlap_grad(const Groups&, const T*, const T*, T*, int);    \
  template void overlap(const Groups&, const T*, const float*, double, T*,   \
                        T*, int);                                            \
  template void overlap(const Groups&, const T*, const double*, double, T*,  \
                        T*, int);                                            \
  template void overlap(const Groups&, const T*, const int64_t*, double, T*, \
                        T*, int);                                            \
  template void agreement(const Groups&, const T*, const float*, double,     \
                          char, double*, int);                               \
  template void agreement(const Groups&, const T*, const double*, double,    \
                          char, double*, int);                               \
  template void agreement(const Groups&, const T*, const int64_t*, double,   \
                          char, double*, int);
RANKSPMM_INSTANTIATE(float)
RANKSPMM_INSTANTIATE(double)
template void tie_spans(const Groups&, const float*, int32_t*, int32_t*, int);
template void tie_spans(const Groups&, const double*, int32_t*, int32_t*, int);
template void tie_spans(const Groups&, const int64_t*, int32_t*, int32_t*,
                        int);

}  // namespace rankspmm
