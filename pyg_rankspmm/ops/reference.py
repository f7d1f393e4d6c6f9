r"""The definition of every operator in plain PyTorch.

These functions run on any device, have derivatives of any order through
autograd, and are what the tests compare the kernels with.
They read like the formulas; where there is no kernel, they also serve.

A matrix comes as the first three fields of a
:class:`~pyg_rankspmm.graph.CSR`: :obj:`rowptr, col, perm`.
"""
from __future__ import annotations

from typing import Callable, Iterator, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_rankspmm.graph import entries

# Sparse products #############################################################

_BLOCK = 1 << 24  # numbers in one temporary: memory does not follow E x H x C


def _blocks(num_entries: int, x: Tensor) -> Iterator[slice]:
    width = max(1, x[:1].numel())
    step = max(1, _BLOCK // width)
    for start in range(0, num_entries, step):
        yield slice(start, start + step)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums over numbers of ``dtype`` are taken."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def spmm(
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    value: Optional[Tensor],
    x: Tensor,
) -> Tensor:
    r"""out[i] = sum over the entries e = (i, j) of value[e] * x[j]."""
    row, col, edge = entries(rowptr, col, perm)
    weight = None if value is None else value[edge]
    return _weighted_sum(row, col, weight, x, rowptr.numel() - 1).to(x.dtype)


def sddmm(
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    g: Tensor,
    x: Tensor,
) -> Tensor:
    r"""out[e] = <g[i], x[j]> for each entry e = (i, j)."""
    row, col, edge = entries(rowptr, col, perm)
    dot = _fill_dropped(_dot(row, col, g, x), row, rowptr, 0.0)
    return torch.zeros_like(dot).index_add(0, edge, dot).to(x.dtype)


def _weighted_sum(row: Tensor, col: Tensor, weight: Optional[Tensor],
                  x: Tensor, num_rows: int) -> Tensor:
    dtype = accumulator(x.dtype)
    out = x.new_zeros((num_rows + 1, ) + x.shape[1:], dtype=dtype)
    x = _with_zero_row(x)
    for e in _blocks(row.numel(), x):
        message = x[col[e]].to(dtype)
        if weight is not None:
            message = message * weight[e].unsqueeze(-1).to(dtype)
        out.index_add_(0, row[e], message)
    return out[:num_rows]


def _dot(row: Tensor, col: Tensor, g: Tensor, x: Tensor) -> Tensor:
    dtype = accumulator(x.dtype)
    g = _with_zero_row(g)
    out = [(g[row[e]].to(dtype) * x[col[e]].to(dtype)).sum(dim=-1)
           for e in _blocks(row.numel(), x)]
    return torch.cat(out) if out else x.new_zeros((0, ) + x.shape[1:-1],
                                                  dtype=dtype)


def _with_zero_row(x: Tensor) -> Tensor:
    """For dropped entries, whose row is behind the last one: 0 times any other
    row might be NaN."""
    return torch.cat([x, x.new_zeros((1, ) + x.shape[1:])])


def _fill_dropped(value: Tensor, row: Tensor, rowptr: Tensor,
                  fill: float) -> Tensor:
    dropped = row == rowptr.numel() - 1
    return value.masked_fill(dropped.view((-1, ) + (1, ) * (value.dim() - 1)),
                             fill)


# Attention ###################################################################


def attention(
    x: Tensor,
    a_src: Tensor,
    a_dst: Optional[Tensor],
    a_edge: Optional[Tensor],
    bias: Optional[Tensor],
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    seed: Optional[Tensor],
    negative_slope: float,
    dropout: float,
) -> Tuple[Tensor, Tensor]:
    r"""out[i] = sum over (i, j) of alpha_ij m_ij x[j] + bias; and lse[i]."""
    row, col, edge = entries(rowptr, col, perm)
    num_rows = rowptr.numel() - 1
    u = _logit(row, col, edge, a_src, a_dst, a_edge)
    s = _score(u, row, rowptr, negative_slope)
    lse = _logsumexp(s, row, num_rows)
    weight = _alpha(s, lse, row) * dropout_mask(seed, edge, s, dropout)
    out = _weighted_sum(row, col, weight, x, num_rows)
    if bias is not None:
        out = out + bias
    return out.to(x.dtype), lse


def attention_weights(
    a_src: Tensor,
    a_dst: Optional[Tensor],
    a_edge: Optional[Tensor],
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    seed: Optional[Tensor],
    negative_slope: float,
    dropout: float,
) -> Tensor:
    r"""alpha_ij m_ij in the caller's order of edges; 0 for dropped ones."""
    row, col, edge = entries(rowptr, col, perm)
    u = _logit(row, col, edge, a_src, a_dst, a_edge)
    s = _score(u, row, rowptr, negative_slope)
    alpha = _alpha(s, _logsumexp(s, row, rowptr.numel() - 1), row)
    weight = alpha * dropout_mask(seed, edge, s, dropout)
    return torch.zeros_like(weight).index_add(0, edge, weight)


def attention_backward(
    grad_out: Tensor,
    x: Tensor,
    a_src: Tensor,
    a_dst: Optional[Tensor],
    a_edge: Optional[Tensor],
    bias: Optional[Tensor],
    out: Tensor,
    lse: Tensor,
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    seed: Optional[Tensor],
    negative_slope: float,
    dropout: float,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""The gradients of x, a_src, a_dst, a_edge and bias, from what the
    forward pass left: alpha is computed again, nothing of size E x H x C is
    stored. Absent ones are empty."""
    row, col, edge = entries(rowptr, col, perm)
    u = _logit(row, col, edge, a_src, a_dst, a_edge)
    alpha = _alpha(_score(u, row, rowptr, negative_slope), lse, row)
    mask = dropout_mask(seed, edge, alpha, dropout)

    value = out if bias is None else out - bias
    d = (grad_out.to(u.dtype) * value.to(u.dtype)).sum(dim=-1)
    dp = mask * _dot(row, col, grad_out, x)
    ds = _fill_dropped(alpha * (dp - _with_zero_row(d)[row]), row, rowptr, 0.0)
    du = torch.where(u > 0, ds, ds * negative_slope)

    grad_x = _weighted_sum(col, row, alpha * mask, grad_out, x.size(0))
    return (
        grad_x.to(x.dtype),
        _sum_to(a_src, col, du),
        _sum_to(a_dst, row, du),
        _sum_to(a_edge, edge, du),
        x.new_empty(0) if bias is None else grad_out.sum(0).to(bias.dtype),
    )


def _logit(row: Tensor, col: Tensor, edge: Tensor, a_src: Tensor,
           a_dst: Optional[Tensor], a_edge: Optional[Tensor]) -> Tensor:
    u = a_src[col]
    if a_dst is not None:
        u = u + _with_zero_row(a_dst)[row]
    if a_edge is not None:
        u = u + a_edge[edge]
    return u


def _score(u: Tensor, row: Tensor, rowptr: Tensor,
           negative_slope: float) -> Tensor:
    s = F.leaky_relu(u, negative_slope)
    return _fill_dropped(s, row, rowptr, -torch.inf)  # alpha becomes 0


def _logsumexp(s: Tensor, row: Tensor, num_rows: int) -> Tensor:
    # One row more, for the dropped entries.
    top = s.new_full((num_rows + 1, s.size(1)), -torch.inf)
    top = top.scatter_reduce(0, row.unsqueeze(-1).expand_as(s), s.detach(),
                             'amax')
    top = top.masked_fill(top.isinf(), 0.0)  # of an empty row, or all -inf
    total = torch.zeros_like(top).index_add(0, row, (s - top[row]).exp())
    # The logarithm of an empty sum must not make its gradient NaN.
    nothing = total == 0
    lse = total.masked_fill(nothing, 1.0).log() + top
    return lse.masked_fill(nothing, -torch.inf)[:num_rows]


def _alpha(s: Tensor, lse: Tensor, row: Tensor) -> Tensor:
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    return (s - F.pad(lse, (0, 0, 0, 1))[row]).exp()  # 0 for dropped entries


def _sum_to(like: Optional[Tensor], index: Tensor, du: Tensor) -> Tensor:
    if like is None:
        return du.new_empty(0)
    out = du.new_zeros((like.size(0) + 1, du.size(1)))
    return out.index_add_(0, index, du)[:-1].to(like.dtype)


_UINT32 = 0xFFFFFFFF


def dropout_mask(seed: Optional[Tensor], edge: Tensor, like: Tensor,
                 rate: float) -> Tensor:
    r"""The dropout mask m, 0 or 1 / (1 - rate), of shape [E, H].

    A hash of (seed, edge, head) decides, so that the mask is the same in the
    forward and backward pass, for any number of threads, and is not stored.
    """
    if rate <= 0.0 or rate >= 1.0:
        return torch.full_like(like, 1.0 if rate <= 0.0 else 0.0)
    assert seed is not None
    low, high = seed & _UINT32, (seed >> 32) & _UINT32
    head = torch.arange(like.size(1), device=like.device)
    key = _mix(edge * 0x9E3779B1 + low).unsqueeze(-1)
    key = _mix(key ^ ((head * 0x7FEB352D + high) & _UINT32))
    keep = key >= min(round(rate * 2**32), _UINT32)
    return keep.to(like.dtype) / (1.0 - rate)


def _mix(h: Tensor) -> Tensor:
    # The finaliser of MurmurHash3, on the low 32 bits of an int64.
    h = h & _UINT32
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _UINT32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _UINT32
    return h ^ (h >> 16)


# Ranking #####################################################################


def group_of(ptr: Tensor, num_entries: int) -> Tensor:
    """The group of each entry, in the order of the groups."""
    position = torch.arange(num_entries, device=ptr.device)
    return torch.searchsorted(ptr, position, right=True) - 1


def sort_groups(score: Tensor, ptr: Tensor) -> Tuple[Tensor, Tensor]:
    """Positions by group and then by falling score; and the group of each
    entry."""
    group = group_of(ptr, score.numel())
    order = torch.sort(score.detach(), descending=True, stable=True)[1]
    order = order[torch.sort(group[order], stable=True)[1]]
    return order, group


def soft_rank(
    score: Tensor,
    temperature: Tensor,
    ptr: Tensor,
    order: Tensor,
    group: Tensor,
    longest: int,
) -> Tensor:
    r"""rank[i] = 1 + sum over j != i in the group of
    F((score[j] - score[i]) / temperature), F the Laplace CDF.

    In falling order the sum splits at i into two recurrences,
    rank_k = k - up_k / 2 + dn_k / 2, as F is an exponential on either side.
    :obj:`longest` is the size of the longest group, or more.
    """
    s, tau = score[order], temperature[group]
    offset = _offset(ptr, group)
    broken = _in_broken_group(s + tau, ptr, group)
    fall = _fall(s, tau, offset, broken)
    up, dn = _up_and_down(fall, torch.ones_like(fall), longest)
    rank = (offset + 1).to(s.dtype) - up / 2 + dn / 2
    rank = torch.where(broken, torch.nan, rank)
    return torch.zeros_like(rank).index_copy(0, order, rank)


def soft_rank_backward(
    grad: Tensor,
    score: Tensor,
    temperature: Tensor,
    ptr: Tensor,
    order: Tensor,
    group: Tensor,
    longest: int,
) -> Tensor:
    r"""ds_k = (U_k + V_k - v_k (up_k + dn_k)) / (2 temperature)."""
    s, v, tau = score[order], grad[order], temperature[group]
    broken = _in_broken_group(s + tau + (v - v), ptr, group)
    fall = _fall(s, tau, _offset(ptr, group), broken)
    v = torch.where(broken, 0, v)
    (u, up), (w, dn) = _up_and_down(
        fall, torch.stack([v, torch.ones_like(v)]), longest)
    out = (u + w - v * (up + dn)) / (2 * tau)
    out = torch.where(broken, torch.nan, out)
    return torch.zeros_like(out).index_copy(0, order, out)


def longest_group(ptr: Tensor) -> int:
    """The size of the longest group."""
    return int(ptr.diff().max()) if ptr.numel() > 1 else 0


def _offset(ptr: Tensor, group: Tensor) -> Tensor:
    """How many entries of its group stand before each entry."""
    return torch.arange(group.numel(), device=group.device) - ptr[group]


def _in_broken_group(x: Tensor, ptr: Tensor, group: Tensor) -> Tensor:
    """Whether an entry of the same group is NaN."""
    count = torch.zeros_like(ptr[1:]).index_add(0, group, x.isnan().long())
    return count[group] > 0


def _fall(s: Tensor, tau: Tensor, offset: Tensor, broken: Tensor) -> Tensor:
    """exp(-(s_(k-1) - s_k) / tau) <= 1 and, where a group begins, 0. There is
    no NaN in it, since the scan multiplies across groups by 0."""
    above = s.roll(1)
    # Equal infinities are as close as other equal scores. (Those keep their
    # difference: the second derivative needs it.)
    skip = broken | (offset == 0) | (s.isinf() & (s == above))
    fall = (-torch.where(skip, 0, above - s) / tau).exp()
    return torch.where(broken | (offset == 0), 0, fall)


def _up_and_down(fall: Tensor, v: Tensor,
                 longest: int) -> Tuple[Tensor, Tensor]:
    r"""up_k = fall_k (v_(k-1) + up_(k-1)) and
    dn_k = fall_(k+1) (v_(k+1) + dn_(k+1)), along the last dimension of v.

    Each step of the scan doubles how far an entry has been heard: 'fall'
    becomes the product over that many entries, and is 0 across groups.
    """
    up, dn = fall * v.roll(1, -1), (fall * v).roll(-1, -1)
    for bit in range(max(0, longest - 1).bit_length()):
        reach = 1 << bit
        up = torch.addcmul(up, fall, up.roll(reach, -1))
        dn = dn + (fall * dn).roll(-reach, -1)
        fall = fall * fall.roll(reach)
    return up, dn


def _run_start(first: Tensor) -> Tensor:
    """The position at which the run of each entry starts."""
    position = torch.arange(first.numel(), device=first.device)
    if first.numel() == 0:
        return position
    return torch.where(first, position, 0).cummax(0)[0]


def tie_spans(score: Tensor, ptr: Tensor) -> Tuple[Tensor, Tensor]:
    r"""The first and the last rank (1-based, falling) of the entries of the
    group that have the same score."""
    order, group = sort_groups(score, ptr)
    s = score[order]
    begin = (_offset(ptr, group) == 0) | (s != s.roll(1))
    start = _run_start(begin)
    stop = _run_start(begin.roll(-1).flip(0)).flip(0)
    start, stop = start - ptr[group] + 1, s.numel() - stop - ptr[group]
    return (torch.zeros_like(start).index_copy(0, order, start),
            torch.zeros_like(stop).index_copy(0, order, stop))


def depth_tables(p: float, depth: int,
                 device: torch.device) -> Tuple[Tensor, Tensor, Tensor]:
    r"""S(k) = sum of w_d / d, W(k) = sum of w_d and Q(k) = sum of w_d d over
    d <= k, for k = 0 to depth, in float64, with the weight of RBO
    w_d = (1 - p) p^(d - 1), and 1 for p = 1."""
    d = torch.arange(1, depth + 1, dtype=torch.float64, device=device)
    w = torch.ones_like(d) if p == 1.0 else (1.0 - p) * p**(d - 1.0)
    s, w, q = (F.pad(x.cumsum(0), (1, 0)) for x in (w / d, w, w * d))
    return s, w, q


def rbo(rank: Tensor, target: Tensor, ptr: Tensor,
        p: float) -> Tuple[Tensor, Tensor]:
    r"""The Rank-Biased Overlap of each group, and its derivative for each
    rank. Ranks are real; the overlap is linear between two whole ones.

    An item whose target ties span the ranks t to b adds c(r) to the overlap.
    The best it can add is c(t), and the sum of these is what equal rankings
    have, RBO = 1. So RBO = 1 - sum of (c(t) - c(r)), without rounding where
    the rankings are equal, and the same for p < 1 and p = 1.
    """
    group = group_of(ptr, rank.numel())
    top, bottom = tie_spans(target, ptr)
    n = ptr.diff()
    s, w, _ = depth_tables(p, longest_group(ptr), rank.device)
    span = bottom - top + 1

    def behind(m: Tensor) -> Tensor:  # c(top) - c(m)
        low, high = torch.minimum(m, bottom) - 1, torch.maximum(m, bottom) - 1
        part = (w[low] - w[top - 1]) - (top - 1) * (s[low] - s[top - 1])
        return s[high] - s[bottom - 1] + part / span

    real = rank.to(torch.float64)
    k = torch.minimum(real.nan_to_num(1.0).floor().clamp(min=1),
                      n[group].double()).long()
    share = ((k - top + 1).double() / span).clamp(max=1.0)
    slope = torch.where(k >= top, -(s[k] - s[k - 1]) * share, 0.0)
    loss = behind(torch.maximum(k, top)) - (real - k) * slope
    if p == 1.0:
        loss, slope = loss / n[group], slope / n[group]

    zero = torch.zeros_like(n, dtype=torch.float64)
    rank_or_nan = torch.where(real >= 1, real, torch.nan)
    broken = ~zero.index_add(0, group, rank_or_nan + _nan(target)).isfinite()
    out = 1.0 - zero.index_add(0, group, loss).clamp(min=0.0)
    out = out.masked_fill(broken, torch.nan)
    slope = slope.masked_fill(broken[group], torch.nan)
    return out.to(rank.dtype), slope.to(rank.dtype)


def rbo_backward(grad: Tensor, slope: Tensor, ptr: Tensor) -> Tensor:
    """The gradient of the ranks: that of the overlap of the group times the
    slope."""
    return grad[group_of(ptr, slope.numel())] * slope


def _nan(x: Tensor) -> Tensor:
    """NaN where x is NaN, else 0."""
    return torch.where(x.isnan(), torch.nan, 0.0).to(torch.float64)


def temperatures(score: Tensor, ptr: Tensor, temperature: float,
                 relative: bool,
                 gather: Optional[Callable[[Tensor], Tensor]] = None,
                 ) -> Tensor:
    r"""The temperature of each group in units of the scores, NaN if one of
    them is not finite.

    A relative one is in standard deviations of the scores of the group, but
    not less than 1/1000 of that of all scores, and 1e-6.
    "All" are also those of other processes, if :obj:`gather` returns the
    vectors of all of them as rows.
    """
    n, group = ptr.diff(), group_of(ptr, score.numel())
    x = score.to(torch.float64)

    def total(value: Tensor) -> Tensor:
        return value.new_zeros(n.numel()).index_add(0, group, value)

    broken = total(x - x) != 0  # inf - inf and NaN - NaN are NaN
    keep = ~broken[group]
    x = torch.where(keep, x, 0.0)
    scale = torch.cat([x.abs(), x.new_ones(1)]).amax()  # no square overflows
    x = x / scale
    mean = total(x) / n.clamp(min=1)
    std = (total((x - mean[group])**2) / n.clamp(min=1)).sqrt()
    count = keep.sum().to(x.dtype)
    center = x.sum() / count.clamp(min=1)
    square = (torch.where(keep, x - center, 0.0)**2).sum()
    part = torch.stack([scale, count, center, square])
    parts = part.view(1, 4) if gather is None else gather(part)
    unit = torch.maximum(std * scale, _floor(parts))
    out = temperature * (unit if relative else torch.ones_like(unit))
    limits = torch.finfo(score.dtype)
    out = out.clamp(limits.tiny, limits.max)
    return out.masked_fill(broken, torch.nan).to(score.dtype)


def _floor(parts: Tensor) -> Tensor:
    """The least unit of a temperature, from the scale of each part of the
    scores and, in it, their count, mean and sum of squares around it."""
    scale, count, mean, square = parts.unbind(1)
    largest = scale.amax()
    ratio, total = scale / largest, count.sum().clamp(min=1)
    mean = ratio * mean
    apart = mean - (count * mean).sum() / total
    spread = (ratio**2 * square + count * apart**2).sum() / total
    return 1e-3 * spread.sqrt() * largest + 1e-6
