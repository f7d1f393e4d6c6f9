// Rankings in groups: soft ranks, Rank-Biased Overlap, temperatures.
#pragma once

#include <cstdint>

namespace rankspmm {

// Group g holds the entries ptr[g] to ptr[g + 1].
struct Groups {
  const int64_t* ptr;
  int64_t count;
  int64_t size;
};

// Throws std::invalid_argument unless ptr rises from 0 to size.
void check(const Groups& groups);

// The ranks of the scores, falling and counted from 1, and the entries by
// group and in each by falling score.
template <class T>
void soft_rank(const Groups& groups, const T* score, const T* temperature,
               T* rank, int32_t* order, int threads);

// The gradient of the scores.
template <class T>
void soft_rank_grad(const Groups& groups, const int32_t* order, const T* grad,
                    const T* score, const T* temperature, T* out, int threads);

// The overlap of each group, and its derivative for each rank. S is the dtype
// of the target.
template <class T, class S>
void overlap(const Groups& groups, const T* rank, const S* target, double p,
             T* rbo, T* slope, int threads);

// The gradient of the ranks: that of the overlap of the group times the slope.
template <class T>
void overlap_grad(const Groups& groups, const T* grad, const T* slope, T* out,
                  int threads);

// The temperature of each group, in units of the scores; NaN where a score is
// not finite.
template <class T>
void temperatures(const Groups& groups, const T* score, double temperature,
                  bool relative, T* out, int threads);

// The overlap of each group between two orders of its entries, with ties
// treated as in the variant 'a', 'b' or 'w'.
template <class T, class S>
void agreement(const Groups& groups, const T* pred, const S* target, double p,
               char ties, double* rbo, int threads);

// The first and last rank of the scores of the group that are equal.
template <class S>
void tie_spans(const Groups& groups, const S* score, int32_t* first,
               int32_t* last, int threads);

}  // namespace rankspmm
