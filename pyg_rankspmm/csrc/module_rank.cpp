// The part of the Python module that deals with rankings; see module.cpp.
#include <nanobind/nanobind.h>

#include <string>

#include "graph.h"
#include "module.h"
#include "rank.h"

namespace nb = nanobind;
using namespace rankspmm;

namespace {

// From (ptr, count, size).
Groups unpack(const nb::tuple& t) {
  return {at<const int64_t>(nb::cast<Address>(t[0])), nb::cast<int64_t>(t[1]),
          nb::cast<int64_t>(t[2])};
}

template <class T>
void rank(nb::tuple groups, Address score, Address temperature, Address out,
          Address order, int threads) {
  const Groups g = unpack(groups);
  nb::gil_scoped_release nogil;
  check(g);
  soft_rank(g, at<const T>(score), at<const T>(temperature), at<T>(out),
            at<int32_t>(order), threads);
}

template <class T>
void rank_grad(nb::tuple groups, Address order, Address grad, Address score,
               Address temperature, Address out, int threads) {
  const Groups g = unpack(groups);
  nb::gil_scoped_release nogil;
  check(g);
  check_places("order", at<const int32_t>(order), g.size, threads);
  soft_rank_grad(g, at<const int32_t>(order), at<const T>(grad),
                 at<const T>(score), at<const T>(temperature), at<T>(out),
                 threads);
}

template <class T, class S>
void rbo(nb::tuple groups, Address rank, Address target, double p, Address out,
         Address slope, int threads) {
  const Groups g = unpack(groups);
  nb::gil_scoped_release nogil;
  check(g);
  overlap(g, at<const T>(rank), at<const S>(target), p, at<T>(out),
          at<T>(slope), threads);
}

template <class T>
void rbo_grad(nb::tuple groups, Address grad, Address slope, Address out,
              int threads) {
  const Groups g = unpack(groups);
  nb::gil_scoped_release nogil;
  check(g);
  overlap_grad(g, at<const T>(grad), at<const T>(slope), at<T>(out), threads);
}

template <class T>
void tau(nb::tuple groups, Address score, double temperature, bool relative,
         Address out, int threads) {
  const Groups g = unpack(groups);
  nb::gil_scoped_release nogil;
  check(g);
  temperatures(g, at<const T>(score), temperature, relative, at<T>(out),
               threads);
}

template <class T, class S>
void agree(nb::tuple groups, Address pred, Address target, double p, char ties,
           Address out, int threads) {
  const Groups g = unpack(groups);
  nb::gil_scoped_release nogil;
  check(g);
  agreement(g, at<const T>(pred), at<const S>(target), p, ties,
            at<double>(out), threads);
}

template <class S>
void spans(nb::tuple groups, Address score, Address first, Address last,
           int threads) {
  const Groups g = unpack(groups);
  nb::gil_scoped_release nogil;
  check(g);
  tie_spans(g, at<const S>(score), at<int32_t>(first), at<int32_t>(last),
            threads);
}

template <class T>
void bind(nb::module_& m, const std::string& suffix) {
  m.def(("soft_rank" + suffix).c_str(), &rank<T>);
  m.def(("soft_rank_grad" + suffix).c_str(), &rank_grad<T>);
  m.def(("temperatures" + suffix).c_str(), &tau<T>);
  m.def(("rbo_grad" + suffix).c_str(), &rbo_grad<T>);
  m.def(("rbo" + suffix + "_f32").c_str(), &rbo<T, float>);
  m.def(("rbo" + suffix + "_f64").c_str(), &rbo<T, double>);
  m.def(("rbo" + suffix + "_i64").c_str(), &rbo<T, int64_t>);
  m.def(("agreement" + suffix + "_f32").c_str(), &agree<T, float>);
  m.def(("agreement" + suffix + "_f64").c_str(), &agree<T, double>);
  m.def(("agreement" + suffix + "_i64").c_str(), &agree<T, int64_t>);
}

}  // namespace

void bind_rank(nb::module_& m) {
  bind<float>(m, "_f32");
  bind<double>(m, "_f64");
  m.def("tie_spans_f32", &spans<float>);
  m.def("tie_spans_f64", &spans<double>);
  m.def("tie_spans_i64", &spans<int64_t>);
}
