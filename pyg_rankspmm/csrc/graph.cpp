#include "graph.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "memory.h"
#include "parallel.h"

namespace rankspmm {
namespace {

struct Range {
  int64_t begin;
  int64_t end;
};

Range part(int64_t n, int64_t parts, int64_t k) {
  return {n * k / parts, n * (k + 1) / parts};
}

// A stable counting sort in which each part of the input counts its keys and
// then knows where to put them. A key outside [0, num_keys) has been refused
// before, or is -1: to be left out.
template <class Key>
class CountingSort {
 public:
  CountingSort(int64_t size, int64_t num_keys, int threads)
      : size_(size),
        num_keys_(num_keys),
        threads_(threads),
        // Counters must not take more memory than what is sorted.
        parts_(std::max<int64_t>(
            1, std::min<int64_t>(threads, 4 * size / (num_keys + 1)))),
        count_(parts_ * num_keys) {}

  // key(k, begin, end, emit) calls emit(position, key) in ascending order.
  template <class EachKey>
  void count(const EachKey& each_key) {
    parallel_for(threads_, parts_, [&](int, int64_t p) {
      Key* count = count_.data() + p * num_keys_;
      std::fill(count, count + num_keys_, Key{0});
      const Range r = part(size_, parts_, p);
      each_key(p, r.begin, r.end, [&](int64_t, int64_t key) { ++count[key]; });
    });
  }

  // Turns counts into the first place of each key in each part. extra(key)
  // places are left free at the end of each key's places.
  template <class Extra>
  void scan(int64_t* ptr, const Extra& extra) {
    const int64_t blocks = threads_;
    Array<int64_t> total(blocks + 1);
    const auto each = [&](int64_t b, int64_t start, bool write) {
      const Range r = part(num_keys_, blocks, b);
      for (int64_t key = r.begin; key < r.end; ++key) {
        if (write) ptr[key] = start;
        for (int64_t p = 0; p < parts_; ++p) {
          Key& slot = count_[p * num_keys_ + key];
          const int64_t n = slot;
          if (write) slot = static_cast<Key>(start);
          start += n;
        }
        start += extra(key);
      }
      return start;
    };
    parallel_for(threads_, blocks, [&](int, int64_t b) {
      total[b] = each(b, 0, false);
    });
    int64_t start = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t n = total[b];
      total[b] = start;
      start += n;
    }
    parallel_for(threads_, blocks,
                 [&](int, int64_t b) { each(b, total[b], true); });
    ptr[num_keys_] = start;
  }

  template <class EachKey, class Put>
  void place(const EachKey& each_key, const Put& put) {
    parallel_for(threads_, parts_, [&](int, int64_t p) {
      Key* next = count_.data() + p * num_keys_;
      const Range r = part(size_, parts_, p);
      each_key(p, r.begin, r.end, [&](int64_t position, int64_t key) {
        put(position, static_cast<int64_t>(next[key]++));
      });
    });
  }

  int64_t parts() const { return parts_; }

 private:
  int64_t size_;
  int64_t num_keys_;
  int threads_;
  int64_t parts_;
  Array<Key> count_;
};

void widen(Bounds* bounds, int64_t index) {
  bounds->low = std::min(bounds->low, index);
  bounds->high = std::max(bounds->high, index);
}

Bounds merge(const Array<Bounds>& all, int64_t n) {
  Bounds bounds;
  for (int64_t i = 0; i < n; ++i) {
    bounds.low = std::min(bounds.low, all[i].low);
    bounds.high = std::max(bounds.high, all[i].high);
  }
  return bounds;
}

bool is_index(int64_t index, int64_t size) {
  return static_cast<uint64_t>(index) < static_cast<uint64_t>(size);
}

std::string refuse(const char* name, int64_t size, const Bounds& bounds) {
  return std::string("'") + name + "' must hold indices from 0 to " +
         std::to_string(size - 1) + " (got " +
         std::to_string(bounds.low < 0 ? bounds.low : bounds.high) + ")";
}

Bounds find_bounds(const int32_t* index, int64_t size, int threads) {
  const int64_t parts = threads;
  Array<Bounds> all(parts);
  parallel_for(threads, parts, [&](int, int64_t p) {
    int32_t low = INT32_MAX;
    int32_t high = INT32_MIN;
    const Range r = part(size, parts, p);
    for (int64_t i = r.begin; i < r.end; ++i) {
      low = std::min(low, index[i]);
      high = std::max(high, index[i]);
    }
    all[p] = r.begin < r.end ? Bounds{low, high} : Bounds{};
  });
  return merge(all, parts);
}

void check_index(const char* name, const int32_t* index, int64_t count,
                 int64_t size, int threads) {
  const Bounds bounds = find_bounds(index, count, threads);
  if (!bounds.within(size)) {
    throw std::invalid_argument(refuse(name, size, bounds));
  }
}

}  // namespace

void check(const Csr& m, const char* ptr_name, const char* idx_name,
           int threads) {
  bool rises = m.ptr[0] == 0 && m.ptr[m.rows] <= m.size;
  for (int64_t i = 0; i < m.rows; ++i) rises &= m.ptr[i] <= m.ptr[i + 1];
  if (!rises) {
    throw std::invalid_argument(
        std::string("'") + ptr_name + "' must rise from 0 to at most the " +
        "number of edges, " + std::to_string(m.size));
  }
  check_index(idx_name, m.idx, m.count, m.cols, threads);
  if (m.perm) check_index("perm", m.perm, m.count, m.size, threads);
}

bool build_csr(const int64_t* row, const int64_t* col, int64_t num_edges,
               int64_t num_rows, int64_t num_cols, int64_t num_loops,
               int64_t* rowptr, int32_t* col_out, int32_t* perm,
               Bounds* row_bounds, Bounds* col_bounds, int threads) {
  CountingSort<int32_t> sort(num_edges, num_rows, threads);
  Array<Bounds> row_all(sort.parts()), col_all(sort.parts());
  const bool drop = num_loops > 0;

  sort.count([&](int64_t p, int64_t begin, int64_t end, const auto& emit) {
    Bounds in_row, in_col;
    for (int64_t e = begin; e < end; ++e) {
      const int64_t r = row[e], c = col[e];
      widen(&in_row, r);
      widen(&in_col, c);
      if (is_index(r, num_rows) && !(drop && r == c)) emit(e, r);
    }
    row_all[p] = in_row;
    col_all[p] = in_col;
  });
  *row_bounds = merge(row_all, sort.parts());
  *col_bounds = merge(col_all, sort.parts());
  if (!row_bounds->within(num_rows) || !col_bounds->within(num_cols)) {
    return false;
  }

  sort.scan(rowptr, [&](int64_t r) { return int64_t{r < num_loops}; });
  sort.place(
      [&](int64_t, int64_t begin, int64_t end, const auto& emit) {
        for (int64_t e = begin; e < end; ++e) {
          if (!(drop && row[e] == col[e])) emit(e, row[e]);
        }
      },
      [&](int64_t e, int64_t place) {
        col_out[place] = static_cast<int32_t>(col[e]);
        perm[place] = static_cast<int32_t>(e);
      });
  for (int64_t i = 0; i < num_loops; ++i) {
    const int64_t place = rowptr[i + 1] - 1;
    col_out[place] = static_cast<int32_t>(i);
    perm[place] = static_cast<int32_t>(num_edges + i);
  }
  for (int64_t k = rowptr[num_rows]; k < num_edges + num_loops; ++k) {
    col_out[k] = perm[k] = 0;
  }
  return true;
}

bool group(const int64_t* index, int64_t size, int64_t num_groups,
           int64_t* ptr, int32_t* place, Bounds* bounds, int threads) {
  CountingSort<int32_t> sort(size, num_groups, threads);
  Array<Bounds> all(sort.parts());
  const auto each_key = [&](int64_t p, int64_t begin, int64_t end,
                            const auto& emit) {
    Bounds seen;
    for (int64_t e = begin; e < end; ++e) {
      widen(&seen, index[e]);
      if (is_index(index[e], num_groups)) emit(e, index[e]);
    }
    all[p] = seen;
  };
  sort.count(each_key);
  *bounds = merge(all, sort.parts());
  if (!bounds->within(num_groups)) return false;
  sort.scan(ptr, [](int64_t) { return int64_t{0}; });
  sort.place(each_key, [&](int64_t e, int64_t to) {
    place[e] = static_cast<int32_t>(to);
  });
  return true;
}

void check_places(const char* name, const int32_t* place, int64_t size,
                  int threads) {
  check_index(name, place, size, size, usable_threads(threads, size));
}

template <class Word>
void arrange(const Word* from, const int32_t* place, int64_t size, Word* to,
             int threads) {
  threads = usable_threads(threads, size);
  prefer_large_pages(to, size * sizeof(Word));
  // If `place` holds a place twice, another one is left out.
  parallel_for(threads, threads, [&](int, int64_t p) {
    const Range r = part(size, threads, p);
    std::fill(to + r.begin, to + r.end, Word{0});
  });
  parallel_for(threads, threads, [&](int, int64_t p) {
    const Range r = part(size, threads, p);
    for (int64_t e = r.begin; e < r.end; ++e) to[place[e]] = from[e];
  });
}

template <class Word>
void restore(const Word* from, const int32_t* place, int64_t size, Word* to,
             int threads) {
  threads = usable_threads(threads, size);
  prefer_large_pages(to, size * sizeof(Word));
  parallel_for(threads, threads, [&](int, int64_t p) {
    const Range r = part(size, threads, p);
    for (int64_t e = r.begin; e < r.end; ++e) to[e] = from[place[e]];
  });
}

template void arrange(const uint32_t*, const int32_t*, int64_t, uint32_t*,
                      int);
template void arrange(const uint64_t*, const int32_t*, int64_t, uint64_t*,
                      int);
template void restore(const uint32_t*, const int32_t*, int64_t, uint32_t*,
                      int);
template void restore(const uint64_t*, const int32_t*, int64_t, uint64_t*,
                      int);

bool compress(const int64_t* ptr, int64_t rows, const int64_t* idx,
              int64_t size, int64_t cols, int32_t* idx_out, Bounds* bounds,
              int threads) {
  const int64_t parts = threads;
  Array<Bounds> all(parts);
  parallel_for(threads, parts, [&](int, int64_t p) {
    Bounds seen;
    const Range r = part(size, parts, p);
    for (int64_t e = r.begin; e < r.end; ++e) {
      widen(&seen, idx[e]);
      idx_out[e] = static_cast<int32_t>(idx[e]);
    }
    all[p] = seen;
  });
  *bounds = merge(all, parts);
  if (!bounds->within(cols)) return false;
  bool rises = ptr[0] == 0 && ptr[rows] == size;
  for (int64_t i = 0; i < rows; ++i) rises &= ptr[i] <= ptr[i + 1];
  if (!rises) {
    throw std::invalid_argument(
        "'edge_index' is not a valid compressed matrix: its row pointers must "
        "rise from 0 to the number of edges");
  }
  return true;
}

void transpose(const Csr& m, int64_t* ptr, int32_t* row, int32_t* perm,
               int32_t* place_of, int threads) {
  CountingSort<int32_t> sort(m.count, m.cols, threads);
  sort.count([&](int64_t, int64_t begin, int64_t end, const auto& emit) {
    for (int64_t e = begin; e < end; ++e) emit(e, m.idx[e]);
  });
  sort.scan(ptr, [](int64_t) { return int64_t{0}; });
  sort.place(
      [&](int64_t, int64_t begin, int64_t end, const auto& emit) {
        // emit() needs the row of an entry; walk along with the pointers.
        int64_t r = std::upper_bound(m.ptr, m.ptr + m.rows + 1, begin) -
                    m.ptr - 1;
        for (int64_t e = begin; e < end;) {
          const int64_t stop = std::min(end, m.ptr[r + 1]);
          for (; e < stop; ++e) emit((r << 32) | e, m.idx[e]);
          ++r;
        }
      },
      [&](int64_t packed, int64_t place) {
        const int64_t e = packed & 0xFFFFFFFF;
        if (row) row[place] = static_cast<int32_t>(packed >> 32);
        if (perm) perm[place] = m.perm ? m.perm[e] : static_cast<int32_t>(e);
        if (place_of) place_of[e] = static_cast<int32_t>(place);
      });
  for (int64_t k = m.count; k < m.size; ++k) {
    if (row) row[k] = 0;
    if (perm) perm[k] = 0;
  }
}

}  // namespace rankspmm
