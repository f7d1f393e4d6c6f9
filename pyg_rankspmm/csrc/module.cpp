// The Python module. Arrays come as addresses: pyg_rankspmm/_native.py, the
// only caller, has checked dtype, shape, contiguity and device. What the
// contents of the structures promise is checked here, before anybody follows
// an index.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "graph.h"
#include "kernels.h"
#include "module.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace rankspmm;

namespace {

// From (ptr, idx, perm, rows, cols, size).
Csr unpack(const nb::tuple& t) {
  Csr m;
  m.ptr = at<const int64_t>(nb::cast<Address>(t[0]));
  m.idx = at<const int32_t>(nb::cast<Address>(t[1]));
  m.perm = at<const int32_t>(nb::cast<Address>(t[2]));
  m.rows = nb::cast<int64_t>(t[3]);
  m.cols = nb::cast<int64_t>(t[4]);
  m.size = nb::cast<int64_t>(t[5]);
  m.count = m.ptr[m.rows];
  return m;
}

int threads_for_check(const Csr& m, int threads) {
  return usable_threads(threads, m.count);
}

void check_rows(const Csr& m, int threads) {
  check(m, "rowptr", "col", threads_for_check(m, threads));
}

template <class T>
void spmm(nb::tuple matrix, int64_t heads, int64_t channels, Address value,
          Address x, Address out, int threads) {
  const Csr m = unpack(matrix);
  nb::gil_scoped_release nogil;
  check_rows(m, threads);
  kernels<T>().spmm({m, heads, channels, at<const T>(value), at<const T>(x),
                     at<T>(out)},
                    threads);
}

template <class T>
void sddmm(nb::tuple matrix, int64_t heads, int64_t channels, Address g,
           Address x, Address out, int threads) {
  const Csr m = unpack(matrix);
  nb::gil_scoped_release nogil;
  check_rows(m, threads);
  kernels<T>().sddmm(
      {m, heads, channels, at<const T>(g), at<const T>(x), at<T>(out)},
      threads);
}

template <class T>
AttentionArgs<T> attention_args(const Csr& m, int64_t heads, int64_t channels,
                                Address x, Address a_src, Address a_dst,
                                Address a_edge, Address bias, double slope,
                                double dropout, int64_t seed, Address out,
                                Address lse) {
  return {m,
          heads,
          channels,
          at<const T>(x),
          at<const T>(a_src),
          at<const T>(a_dst),
          at<const T>(a_edge),
          at<const T>(bias),
          static_cast<T>(slope),
          {dropout, seed},
          at<T>(out),
          at<T>(lse)};
}

template <class T>
void attention(nb::tuple matrix, int64_t heads, int64_t channels, Address x,
               Address a_src, Address a_dst, Address a_edge, Address bias,
               double slope, double dropout, int64_t seed, Address out,
               Address lse, int threads) {
  const Csr m = unpack(matrix);
  nb::gil_scoped_release nogil;
  check_rows(m, threads);
  kernels<T>().attention(
      attention_args<T>(m, heads, channels, x, a_src, a_dst, a_edge, bias,
                        slope, dropout, seed, out, lse),
      threads);
}

template <class T>
void attention_grad(nb::tuple matrix, nb::tuple transposed, int64_t heads,
                    int64_t channels, Address x, Address a_src, Address a_dst,
                    Address a_edge, Address bias, double slope, double dropout,
                    int64_t seed, Address out, Address lse, Address grad_out,
                    Address grad_x, Address grad_a_src, Address grad_a_dst,
                    Address grad_a_edge, Address grad_bias, int threads) {
  const Csr m = unpack(matrix);
  Csr t{};
  if (transposed.size() > 0) t = unpack(transposed);
  nb::gil_scoped_release nogil;
  check_rows(m, threads);
  if (t.ptr) {
    check(t, "colptr", "row", threads_for_check(t, threads));
    if (t.count != m.count) {
      throw std::invalid_argument(
          "'rowptr' and 'colptr' must hold the same edges (got " +
          std::to_string(m.count) + " and " + std::to_string(t.count) + ")");
    }
  }
  kernels<T>().attention_grad(
      {attention_args<T>(m, heads, channels, x, a_src, a_dst, a_edge, bias,
                         slope, dropout, seed, out, lse),
       t, at<const T>(grad_out), at<T>(grad_x), at<T>(grad_a_src),
       at<T>(grad_a_dst), at<T>(grad_a_edge), at<T>(grad_bias)},
      threads);
}

// Structures. Bounds come back as (low, high) where an index was refused.

nb::object out_of_bounds(const char* which, const Bounds& b) {
  return nb::make_tuple(which, b.low, b.high);
}

nb::object build(Address row, Address col, int64_t num_edges, int64_t num_rows,
                 int64_t num_cols, int64_t num_loops, Address rowptr,
                 Address col_out, Address perm, int threads) {
  Bounds rows, cols;
  bool ok;
  {
    nb::gil_scoped_release nogil;
    ok = build_csr(at<const int64_t>(row), at<const int64_t>(col), num_edges,
                   num_rows, num_cols, num_loops, at<int64_t>(rowptr),
                   at<int32_t>(col_out), at<int32_t>(perm), &rows, &cols,
                   usable_threads(threads, num_edges));
  }
  if (ok) return nb::none();
  if (!rows.within(num_rows)) return out_of_bounds("row", rows);
  return out_of_bounds("col", cols);
}

nb::object group_index(Address index, int64_t size, int64_t num_groups,
                       Address ptr, Address place, int threads) {
  Bounds bounds;
  bool ok;
  {
    nb::gil_scoped_release nogil;
    ok = group(at<const int64_t>(index), size, num_groups, at<int64_t>(ptr),
               at<int32_t>(place), &bounds, usable_threads(threads, size));
  }
  return ok ? nb::none() : out_of_bounds("index", bounds);
}

// Entries of 4 or 8 bytes, whatever they mean.
template <template <class> class Move>
void move_entries(Address from, Address place, int64_t size, int bytes,
                  Address to, int threads) {
  nb::gil_scoped_release nogil;
  check_places("place", at<const int32_t>(place), size, threads);
  if (bytes == 4) {
    Move<uint32_t>::run(at<const uint32_t>(from), at<const int32_t>(place),
                        size, at<uint32_t>(to), threads);
  } else {
    Move<uint64_t>::run(at<const uint64_t>(from), at<const int32_t>(place),
                        size, at<uint64_t>(to), threads);
  }
}

template <class Word>
struct Arrange {
  static constexpr auto run = arrange<Word>;
};

template <class Word>
struct Restore {
  static constexpr auto run = restore<Word>;
};

nb::object compress_matrix(Address ptr, int64_t rows, Address idx,
                           int64_t size, int64_t cols, Address idx_out,
                           int threads) {
  Bounds bounds;
  bool ok;
  {
    nb::gil_scoped_release nogil;
    ok = compress(at<const int64_t>(ptr), rows, at<const int64_t>(idx), size,
                  cols, at<int32_t>(idx_out), &bounds,
                  usable_threads(threads, size));
  }
  return ok ? nb::none() : out_of_bounds("col", bounds);
}

void transpose_matrix(nb::tuple matrix, Address ptr, Address row, Address perm,
                      int threads) {
  const Csr m = unpack(matrix);
  nb::gil_scoped_release nogil;
  threads = threads_for_check(m, threads);
  check(m, "rowptr", "col", threads);
  transpose(m, at<int64_t>(ptr), at<int32_t>(row), at<int32_t>(perm), nullptr,
            threads);
}

nb::list levels() {
  nb::list names;
  for (const Level* const* l = available_levels(); *l; ++l) {
    names.append((*l)->name);
  }
  return names;
}

void choose_level(const std::string& name) {
  for (const Level* const* l = available_levels(); *l; ++l) {
    if (name == (*l)->name) return set_level(**l);
  }
  throw std::invalid_argument("this processor or build has no SIMD level '" +
                              name + "'");
}

bool has_openmp() {
#ifdef _OPENMP
  return true;
#else
  return false;
#endif
}

template <class T>
void bind(nb::module_& m, const std::string& suffix) {
  m.def(("spmm" + suffix).c_str(), &spmm<T>);
  m.def(("sddmm" + suffix).c_str(), &sddmm<T>);
  m.def(("attention" + suffix).c_str(), &attention<T>);
  m.def(("attention_grad" + suffix).c_str(), &attention_grad<T>);
}

}  // namespace

NB_MODULE(_C, m) {
  bind<float>(m, "_f32");
  bind<double>(m, "_f64");
  bind_rank(m);
  m.def("csr", &build);
  m.def("group", &group_index);
  m.def("arrange", &move_entries<Arrange>);
  m.def("restore", &move_entries<Restore>);
  m.def("compress", &compress_matrix);
  m.def("transpose", &transpose_matrix);
  m.def("levels", &levels);
  m.def("level", [] { return current_level().name; });
  m.def("set_level", &choose_level, "name"_a);
  m.def("has_openmp", &has_openmp);
}
