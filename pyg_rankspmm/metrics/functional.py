"""Ranking measures for all source nodes at once."""
from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_rankspmm.graph import arrange, group
from pyg_rankspmm.ops.reference import (
    depth_tables,
    group_of,
    longest_group,
)
from pyg_rankspmm.ops.soft_rank import (
    check_groups,
    check_target,
    count_groups,
    tie_spans,
)
from pyg_rankspmm.typing import (
    check_choice,
    check_float,
    check_probability,
    describe,
    flatten,
)


def rank_biased_overlap(
    pred: Tensor,
    target: Tensor,
    index: Tensor,
    p: float = 0.9,
    weighting: str = 'degree',
    reduction: str = 'mean',
    dim_size: Optional[int] = None,
) -> Tensor:
    r"""The Rank-Biased Overlap (RBO) between the order of the predictions and
    the true order, for each group,

    .. math::
        \mathrm{RBO}_g = \sum_{d=1}^{n_g} (1 - p) \, p^{d-1} \,
        \frac{X_d}{d} + p^{n_g}, \qquad
        X_d = \sum_i c_i(d) \, \hat{c}_i(d),

    of the `"A Similarity Measure for Indefinite Rankings"
    <https://doi.org/10.1145/1852102.1852106>`_ paper (extrapolated, eq. 30),
    or :math:`\frac{1}{n_g} \sum_d X_d / d` (average overlap) for
    :math:`p = 1`.
    An entry that is among the first :math:`d` has :math:`c_i(d) = 1`. If it
    shares the ranks :math:`t` to :math:`b` with others of the same score,
    :math:`c_i(d)` rises from 0 to 1 in equal steps: the overlap is the mean
    over all orders of equal scores, on both sides (:math:`\mathrm{RBO}^a` of
    `"The Treatment of Ties in Rank-Biased Overlap"
    <https://arxiv.org/abs/2406.07121>`_).

    The overlap of random orders is not 0: it is the larger, the shorter the
    lists are (0.95 for two entries and :math:`p = 0.9`). Compare with that of
    random scores.

    Computed in closed form in :math:`\mathcal{O}(n \log n)`, in float64.

    Args:
        pred (torch.Tensor): The predicted scores, higher is better, shape
            :obj:`[num_edges]`.
        target (torch.Tensor): The true scores, shape :obj:`[num_edges]`.
        index (torch.Tensor): The group (source node) of each edge, shape
            :obj:`[num_edges]`, in any order.
        p (float, optional): The persistence :math:`0 < p \leq 1`.
            (default: :obj:`0.9`)
        weighting (str, optional): Whether a group counts as much as it has
            edges (:obj:`"degree"`), or all the same (:obj:`"uniform"`) in the
            mean. (default: :obj:`"degree"`)
        reduction (str, optional): The mean over all groups with edges
            (:obj:`"mean"`), or the value of each group, :obj:`NaN` for groups
            without edges (:obj:`"none"`). (default: :obj:`"mean"`)
        dim_size (int, optional): The number of groups. If :obj:`None`, the
            largest index plus one. (default: :obj:`None`)

    Returns:
        torch.Tensor: A scalar, or shape :obj:`[num_groups]`; float64.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If shapes, devices or indices do not fit.

    Example:
        >>> pred = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
        >>> target = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
        >>> index = torch.zeros(5, dtype=torch.long)
        >>> rank_biased_overlap(pred, target, index, p=1.0)
        tensor(0.4167, dtype=torch.float64)
    """
    check_probability('p', p)
    pred, target, ptr = _grouped(pred, target, index, dim_size)
    n, groups = ptr.diff(), group_of(ptr, pred.numel())
    missing = _sum_to(n, groups,
                      _missing_overlap(pred, target, ptr, p, n[groups]))
    if p == 1.0:
        missing = missing / n
    out = 1.0 - missing.clamp(min=0.0)
    broken = _broken_groups(n, groups, pred, target)
    out = out.masked_fill(broken | (n == 0), torch.nan)
    return _reduce(out, n, n > 0, weighting, reduction)


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
    pred, target, ptr = _grouped(pred, target, index, dim_size)
    n, groups = ptr.diff(), group_of(ptr, pred.numel())
    first_x, last_x = (x.long() for x in tie_spans(pred, ptr))
    first_y, last_y = (y.long() for y in tie_spans(target, ptr))
    order, both = _joint_rank(ptr[groups] + first_x, first_y)
    pairs = n * (n - 1) // 2
    # An entry that ties with k others counts for k / 2 pairs.
    tied_x, tied_y, tied_both = (
        _sum_to(n, groups, others) // 2
        for others in (last_x - first_x, last_y - first_y,
                       torch.bincount(both)[both] - 1))
    discordant = _discordant_pairs(order, first_y - 1, ptr, groups)
    untied = pairs - tied_x - tied_y + tied_both
    scale = ((pairs - tied_x).double() * (pairs - tied_y).double()).sqrt()
    out = (untied - 2 * discordant) / scale  # 0 / 0 where undefined
    broken = _broken_groups(n, groups, pred, target)
    out = out.masked_fill(broken, torch.nan)
    # A model that predicts NaN shall not be the better for it.
    return _reduce(out, n, broken | (scale > 0), weighting, reduction)


def rbo_weight(p: float, depth: int) -> float:
    r"""The weight that RBO gives to the first :obj:`depth` ranks,

    .. math::
        W(d) = 1 - p^{d-1} + \frac{1 - p}{p} \, d \left( \ln \frac{1}{1 - p}
        - \sum_{i=1}^{d-1} \frac{p^i}{i} \right),

    eq. 21 of the `"A Similarity Measure for Indefinite Rankings"
    <https://doi.org/10.1145/1852102.1852106>`_ paper.

    Args:
        p (float): The persistence :math:`0 < p \leq 1`. For :math:`p = 1`,
            which weighs all depths of an endless list alike, the weight is 0.
        depth (int): The number of ranks :math:`d \geq 1`.

    Example:
        >>> round(rbo_weight(0.9, 10), 4)
        0.8556
    """
    check_probability('p', p)
    _check_depth(depth)
    if p == 1.0:
        return 0.0
    # The bracket is the tail sum of p^i / i from d on: summed as such where
    # the difference would cancel.
    head = math.fsum(p**i / i for i in range(1, depth))
    tail = -math.log1p(-p) - head
    if tail < 1e-6:
        tail = p**depth * math.fsum(p**i / (depth + i)
                                    for i in range(_terms(p)))
    return 1.0 - p**(depth - 1) + (1.0 - p) / p * depth * tail


def rbo_p(weight: float, depth: int) -> float:
    r"""The persistence :math:`p` for which RBO gives the weight
    :obj:`weight` to the first :obj:`depth` ranks: the inverse of
    :func:`rbo_weight`.

    Args:
        weight (float): The weight, between 0 and 1 (exclusive).
        depth (int): The number of ranks :math:`d \geq 1`.

    Example:
        >>> round(rbo_p(0.8556, 10), 3)
        0.9
    """
    _check_depth(depth)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise TypeError(f"'weight' must be a number between 0 and 1 (got "
                        f"{describe(weight)})")
    if not 0.0 < weight < 1.0:
        raise ValueError(f"'weight' must lie between 0 and 1 (got {weight})")
    low, high = 0.0, 1.0  # the weight falls from 1 to 0
    while high - low > 1e-12:
        p = (low + high) / 2
        low, high = (p, high) if rbo_weight(p, depth) > weight else (low, p)
    return (low + high) / 2


def _check_depth(depth: Any) -> None:
    if isinstance(depth, bool) or not isinstance(depth, int):
        raise TypeError(f"'depth' must be an integer (got {describe(depth)})")
    if depth < 1:
        raise ValueError(f"'depth' must be at least 1 (got {depth})")


def _terms(p: float) -> int:
    """As many terms of a geometric series as float64 can see."""
    return min(1_000_000, 1 + int(-40.0 / math.log(p)))


# Groups ######################################################################


def _grouped(
    pred: Tensor,
    target: Tensor,
    index: Tensor,
    dim_size: Optional[int],
) -> Tuple[Tensor, Tensor, Tensor]:
    pred = flatten('pred', check_float('pred', pred)).detach()
    target = check_target(target, pred)
    index = check_groups('index', index, pred, 'pred')
    num_groups = count_groups('index', index, dim_size)
    ptr, place = group(index, num_groups)
    return arrange(pred, place), arrange(target, place), ptr


def _sum_to(n: Tensor, groups: Tensor, value: Tensor) -> Tensor:
    return value.new_zeros(n.numel()).index_add(0, groups, value)


def _broken_groups(n: Tensor, groups: Tensor, *scores: Tensor) -> Tensor:
    """Which groups hold a score that is NaN."""
    nan = torch.stack([score.isnan() for score in scores]).any(0)
    return _sum_to(n, groups, nan.long()) > 0


def _reduce(value: Tensor, n: Tensor, keep: Tensor, weighting: str,
            reduction: str) -> Tensor:
    """The weighted mean over the groups to keep."""
    check_choice('weighting', weighting, ('degree', 'uniform'))
    check_choice('reduction', reduction, ('mean', 'none'))
    if reduction == 'none':
        return value
    weight = keep * (n if weighting == 'degree' else keep)
    value = torch.where(keep, value, 0.0)
    return (weight * value).sum() / weight.sum()


# Rank-Biased Overlap #########################################################


def _missing_overlap(pred: Tensor, target: Tensor, ptr: Tensor, p: float,
                     n: Tensor) -> Tensor:
    r"""For each entry the sum over all depths of w_d / d c(d) (1 - ĉ(d)).

    The sums of w_d / d c(d) alone add up to an overlap of 1, so these make up
    1 - RBO, without rounding where the orders are equal. With the ranks of
    the entry in both orders, [t, b] and [t', b'], the product c(d) ĉ(d) is 0
    before both begin, quadratic while both rise, linear while one does, then
    1.
    """
    s, w, q = depth_tables(p, longest_group(ptr), pred.device)
    t1, b1 = (x.long() for x in tie_spans(pred, ptr))
    t2, b2 = (x.long() for x in tie_spans(target, ptr))
    alone = s[n] - s[b2 - 1] + (w[b2 - 1] - w[t2 - 1] - (t2 - 1) *
                                (s[b2 - 1] - s[t2 - 1])) / (b2 - t2 + 1)
    late_first = b1 > b2  # 1 is the one that is full sooner
    t1, t2 = torch.where(late_first, t2, t1), torch.where(late_first, t1, t2)
    b1, b2 = torch.where(late_first, b2, b1), torch.where(late_first, b1, b2)
    size1, size2 = b1 - t1 + 1, b2 - t2 + 1

    def between(table: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The sum over the depths low <= d < high."""
        return table[torch.maximum(low, high) - 1] - table[low - 1]

    begin = torch.maximum(t1, t2)
    # (d - t1 + 1) (d - t2 + 1) / d = d - (t1 + t2 - 2) + (t1 - 1)(t2 - 1) / d
    both = (between(q, begin, b1) - (t1 + t2 - 2) * between(w, begin, b1) +
            (t1 - 1) * (t2 - 1) * between(s, begin, b1)) / (size1 * size2)
    begin = torch.maximum(begin, b1)
    one = (between(w, begin, b2) - (t2 - 1) * between(s, begin, b2)) / size2
    begin = torch.maximum(begin, b2)
    return alone - (both + one + between(s, begin, n + 1))


# Kendall #####################################################################


def _joint_rank(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]:
    """The order by x, then y, and a number for each pair (x, y), dense from 0
    on."""
    order = torch.sort(y, stable=True)[1]
    order = order[torch.sort(x[order], stable=True)[1]]
    new = (x[order].diff() != 0) | (y[order].diff() != 0)
    number = F.pad(new.long().cumsum(0), (1, 0))[:x.numel()]
    return order, torch.zeros_like(x).index_copy(0, order, number)


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
    return _sum_to(ptr[1:], group, count)
