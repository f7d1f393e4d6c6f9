r"""The definition of every operator in plain PyTorch.

These functions run on any device, have derivatives of any order through
autograd, and are what the tests compare the kernels with.
They read like the formulas; where there is no kernel, they also serve.

A matrix comes as the first three fields of a
:class:`~pyg_rankspmm.graph.CSR`: :obj:`rowptr, col, perm`.
"""
from __future__ import annotations

from typing import Iterator, Optional, Tuple

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
    return torch.promote_types(dtype, torch.float32)


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
    for e in _blocks(row.numel(), x):
        message = _take(x, col[e]).to(dtype)
        if weight is not None:
            message = message * weight[e].unsqueeze(-1).to(dtype)
        out.index_add_(0, row[e], message)
    return out[:num_rows]


def _dot(row: Tensor, col: Tensor, g: Tensor, x: Tensor) -> Tensor:
    dtype = accumulator(x.dtype)
    out = [(_take(g, row[e]).to(dtype) * x[col[e]].to(dtype)).sum(dim=-1)
           for e in _blocks(row.numel(), x)]
    return torch.cat(out) if out else x.new_zeros((0, ) + x.shape[1:-1],
                                                  dtype=dtype)


def _take(x: Tensor, row: Tensor) -> Tensor:
    return x[row.clamp(max=x.size(0) - 1)]  # dropped entries take any row


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
    ds = _fill_dropped(alpha * (dp - _take(d, row)), row, rowptr, 0.0)
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
        u = u + _take(a_dst, row)
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
