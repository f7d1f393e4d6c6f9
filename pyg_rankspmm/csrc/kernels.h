// What the kernels of one SIMD level offer.
#pragma once

#include <cstdint>

#include "graph.h"

namespace rankspmm {

// In all of them x is [matrix.cols, heads, channels], and edge values are
// [matrix.size, heads] in the caller's order of edges. Outputs are written
// whole. Null stands for an absent operand.

template <class T>
struct SpmmArgs {
  Csr matrix;
  int64_t heads, channels;
  const T* value;
  const T* x;
  T* out;  // [rows, heads, channels]
};

template <class T>
struct SddmmArgs {
  Csr matrix;
  int64_t heads, channels;
  const T* g;  // [rows, heads, channels]
  const T* x;
  T* out;  // [size, heads]
};

struct Dropout {
  double rate;  // 0: none
  int64_t seed;
};

template <class T>
struct AttentionArgs {
  Csr matrix;
  int64_t heads, channels;
  const T* x;
  const T* a_src;   // [cols, heads]
  const T* a_dst;   // [rows, heads]
  const T* a_edge;  // [size, heads]
  const T* bias;    // [heads, channels]
  T negative_slope;
  Dropout dropout;
  T* out;  // [rows, heads, channels]
  T* lse;  // [rows, heads]
};

template <class T>
struct AttentionGradArgs {
  AttentionArgs<T> forward;  // out and lse as the forward pass left them
  Csr transposed;            // ptr is null: has to be computed
  const T* grad_out;
  T* grad_x;
  T* grad_a_src;
  T* grad_a_dst;
  T* grad_a_edge;
  T* grad_bias;
};

template <class T>
struct Kernels {
  void (*spmm)(const SpmmArgs<T>&, int threads);
  void (*sddmm)(const SddmmArgs<T>&, int threads);
  void (*attention)(const AttentionArgs<T>&, int threads);
  void (*attention_grad)(const AttentionGradArgs<T>&, int threads);
  void (*exp)(T* x, int64_t n);  // in place
};

struct Level {
  const char* name;
  Kernels<float> f32;
  Kernels<double> f64;
};

// The levels of this build that this processor can run, best first; ends with
// a null pointer.
const Level* const* available_levels();
const Level& current_level();
void set_level(const Level& level);

template <class T>
const Kernels<T>& kernels();

}  // namespace rankspmm
