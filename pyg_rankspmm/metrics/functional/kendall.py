"""Kendall's rank correlation for all source nodes at once."""
from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_rankspmm.metrics.functional._groups import (
    check_pair,
    check_reduction,
    group_pairs,
    joint_rank,
    reduce_groups,
)
from pyg_rankspmm.ops.agreement import broken_groups, rank, sum_to
from pyg_rankspmm.ops.reference import longest_group


def kendall_tau(
    pred: Tensor,
    target: Tensor,
    index: Tensor,
    weighting: str = 'degree',
    reduction: str = 'mean',
    dim_size: Optional[int] = None,
) -> Tensor:
    r"""Kendall's rank correlation :math:`\tau_b` between predictions and
    targets, for each group,

    .. math::
        \tau_b = \frac{P - Q}{\sqrt{(P + Q + T)(P + Q + U)}},

    with :math:`P` concordant and :math:`Q` discordant pairs, and :math:`T` and
    :math:`U` pairs that are tied in one of the two only, from the `"The
    Treatment of Ties in Ranking Problems"
    <https://doi.org/10.1093/biomet/33.3.239>`_ paper.

    Discordant pairs are counted by sorting (`"A Computer Method for
    Calculating Kendall's Tau with Ungrouped Data"
    <https://doi.org/10.1080/01621459.1966.10480879>`_): a group of 100,000
    edges is no problem.
    The coefficient is undefined for groups in which all predictions or all
    targets are equal, such as groups of one edge: they are :obj:`NaN`, and
    left out of the mean. A group with a :obj:`NaN` in it is not left out.

    Args:
        pred (torch.Tensor): The predicted scores, shape :obj:`[num_edges]`.
        target (torch.Tensor): The true scores, shape :obj:`[num_edges]`.
        index (torch.Tensor): The group of each edge, shape
            :obj:`[num_edges]`, in any order.
        weighting (str, optional): As in :func:`rank_biased_overlap`.
            (default: :obj:`"degree"`)
        reduction (str, optional): As in :func:`rank_biased_overlap`.
            (default: :obj:`"mean"`)
        dim_size (int, optional): The number of groups.
            (default: :obj:`None`)

    Returns:
        torch.Tensor: A scalar, or shape :obj:`[num_groups]`; float64.

    Example:
        >>> pred = torch.tensor([0.1, 0.2, 0.3, 0.4])
        >>> target = torch.tensor([1.0, 2.0, 4.0, 3.0])
        >>> kendall_tau(pred, target, torch.zeros(4, dtype=torch.long))
        tensor(0.6667, dtype=torch.float64)
    """
    check_reduction(weighting, reduction)
    pred, target, index = check_pair(pred, target, index)
    pred, target, ptr = group_pairs(pred, target, index, dim_size, reduction)
    x, y = rank(ptr, pred, target)
    n, groups = x.n, x.group
    order, both = joint_rank(ptr[groups] + x.first, y.first)
    pairs = n * (n - 1) // 2
    # An entry that ties with k others counts for k / 2 pairs.
    tied_x, tied_y, tied_both = (
        sum_to(n, groups, others) // 2
        for others in (x.last - x.first, y.last - y.first,
                       torch.bincount(both)[both] - 1))
    discordant = _discordant_pairs(order, y.first - 1, ptr, groups)
    untied = pairs - tied_x - tied_y + tied_both
    scale = ((pairs - tied_x).double() * (pairs - tied_y).double()).sqrt()
    out = (untied - 2 * discordant) / scale  # 0 / 0 where undefined
    broken = broken_groups(n, groups, pred, target)
    out = out.masked_fill(broken, torch.nan)
    # A model that predicts NaN shall not be the better for it.
    return reduce_groups(out, n, broken | (scale > 0), weighting, reduction)


def _discordant_pairs(order: Tensor, y: Tensor, ptr: Tensor,
                      groups: Tensor) -> Tensor:
    """The number of pairs of each group that 'order' and y >= 0 order
    oppositely.

    A radix sort by y, from the highest bit on: an entry whose bit is 0 is
    discordant with all entries whose bit is 1 that come before it and agree in
    the higher bits, which share a run of positions from 'begin' to 'end'.
    """
    y, group = y[order], groups[order]
    begin, end, count = ptr[group], ptr[group + 1], torch.zeros_like(y)
    position = torch.arange(y.numel(), device=y.device)
    for bit in reversed(range(max(0, longest_group(ptr) - 1).bit_length())):
        one = (y >> bit) & 1
        ones = F.pad(one.cumsum(0), (1, 0))
        before = ones[:-1] - ones[begin]
        count += (1 - one) * before  # entries do not leave their group
        middle = end - (ones[end] - ones[begin])
        up = one > 0
        to = torch.where(up, middle + before, position - before)
        y, begin, end = (torch.zeros_like(x).index_copy(0, to, x) for x in (
            y, torch.where(up, middle, begin), torch.where(up, end, middle)))
    return sum_to(ptr[1:], group, count)
