// Compressed sparse rows: building them, turning them, checking them.
#pragma once

#include <cstdint>

namespace rankspmm {

// Row i holds the entries ptr[i] to ptr[i + 1] of idx (column) and perm
// (position in the caller's order; null: the same order). Entries from `count`
// on belong to no row.
struct Csr {
  const int64_t* ptr;
  const int32_t* idx;
  const int32_t* perm;
  int64_t rows;
  int64_t cols;
  int64_t size;   // length of idx
  int64_t count;  // ptr[rows]
};

// Smallest and largest index that was met; in bounds if nothing else is said.
struct Bounds {
  int64_t low = INT64_MAX;
  int64_t high = INT64_MIN;
  bool within(int64_t size) const {
    return low > high || (low >= 0 && high < size);
  }
};

// Throws std::invalid_argument unless every index that a kernel is going to
// follow stays inside its array.
void check(const Csr& matrix, const char* ptr_name, const char* idx_name,
           int threads);

// Groups E edges by row, in a stable order. With num_loops > 0 edges with
// equal ends are dropped and row i < num_loops ends with an edge (i, i) at
// position E + i. Nothing is written past num_rows + 1 and E + num_loops.
// Returns false, and the bounds, if an index is out of bounds.
bool build_csr(const int64_t* row, const int64_t* col, int64_t num_edges,
               int64_t num_rows, int64_t num_cols, int64_t num_loops,
               int64_t* rowptr, int32_t* col_out, int32_t* perm,
               Bounds* row_bounds, Bounds* col_bounds, int threads);

// Where each position goes when they are sorted by `index`, in a stable
// order, and where each group begins.
bool group(const int64_t* index, int64_t size, int64_t num_groups,
           int64_t* ptr, int32_t* place, Bounds* bounds, int threads);

// Throws std::invalid_argument unless every place is one from 0 to size - 1.
void check_places(const char* name, const int32_t* place, int64_t size,
                  int threads);

// to[place[e]] = from[e], and to[e] = from[place[e]]. Both walk along the
// caller's order: each group is then read or written from front to back, and
// its lines stay in the cache.
template <class Word>
void arrange(const Word* from, const int32_t* place, int64_t size, Word* to,
             int threads);
template <class Word>
void restore(const Word* from, const int32_t* place, int64_t size, Word* to,
             int threads);

// Shortens the indices of a matrix that somebody else has compressed.
// Returns false, and the bounds, if an index is out of bounds; throws
// std::invalid_argument if `ptr` does not rise from 0 to `size`.
bool compress(const int64_t* ptr, int64_t rows, const int64_t* idx,
              int64_t size, int64_t cols, int32_t* idx_out, Bounds* bounds,
              int threads);

// The transposed matrix. Each output but ptr may be null: `row` and `perm` as
// in Csr, and `place`, the new place of each old entry.
void transpose(const Csr& matrix, int64_t* ptr, int32_t* row, int32_t* perm,
               int32_t* place, int threads);

}  // namespace rankspmm
