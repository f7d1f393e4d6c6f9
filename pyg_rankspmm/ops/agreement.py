r"""The overlap of two rankings, depth by depth.

All depths of all groups lie on one axis, one group after the other. At a
depth :math:`d`, an entry of a list is in front of the ties that :math:`d`
cuts (:math:`c(d) = 1`), among them (:math:`c(d)` is their share, the same for
all of them) or behind them (:math:`c(d) = 0`). So all sums over entries are
whole numbers, counted by the spans of depths over which an entry counts, times
these shares: exact, and linear in the number of entries.
"""
from __future__ import annotations

from typing import NamedTuple, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_rankspmm._library import define
from pyg_rankspmm.ops.reference import group_of
from pyg_rankspmm.ops.soft_rank import tie_spans


def rank_biased_agreement(pred: Tensor, target: Tensor, ptr: Tensor, p: float,
                          ties: str) -> Tensor:
    r"""The Rank-Biased Overlap of two orders of the same entries, which lie
    side by side in their groups; shape :obj:`[num_groups]`, float64,
    :obj:`NaN` for an empty group and one with a :obj:`NaN` in it."""
    return _rank_biased_agreement(pred, target, ptr, p, ties)


class Ranking(NamedTuple):
    r"""One ranked list for each group, its entries side by side.

    Attributes:
        group: The group of each entry, shape :obj:`[num_entries]`.
        first: The first rank, from 1 on, that the entries which tie with it
            share.
        last: The last one.
        n: The length of each list, shape :obj:`[num_groups]`.
    """
    group: Tensor
    first: Tensor
    last: Tensor
    n: Tensor

    def take(self, entry: Tensor) -> Ranking:
        """Some of the entries, of lists that are as long as before."""
        return Ranking(self.group[entry], self.first[entry], self.last[entry],
                       self.n)


def rank(ptr: Tensor, *scores: Tensor) -> Tuple[Ranking, ...]:
    """Ranks the entries of groups, which lie side by side, by falling score,
    once for each score."""
    n, groups = ptr.diff(), group_of(ptr, scores[0].numel())
    return tuple(
        Ranking(groups, first.long(), last.long(), n)
        for first, last in (tie_spans(score, ptr) for score in scores))


class Depths:
    r"""The depths 1 to :obj:`length[g]` of each group :obj:`g`."""
    def __init__(self, length: Tensor) -> None:
        self.length = length
        ptr = F.pad(length.cumsum(0), (1, 0))
        self.start, self.total = ptr[:-1], int(ptr[-1])
        self.group = group_of(ptr, self.total)
        position = torch.arange(self.total, device=length.device)
        self.depth = position - self.start[self.group] + 1

    def count(self, group: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """How many of the spans begin <= d < end hold each depth d; no end
        lies more than one behind the last depth."""
        start = self.start[group] - 1
        steps = torch.bincount(start + torch.minimum(begin, end),
                               minlength=self.total + 1)
        steps -= torch.bincount(start + end, minlength=self.total + 1)
        return steps[:self.total].cumsum(0)

    def end(self, group: Tensor) -> Tensor:
        """One behind the last depth."""
        return self.length[group] + 1

    def at(self, value: Tensor, depth: Tensor) -> Tensor:
        """The value at one depth of each group, 0 at depth 0."""
        value = F.pad(value, (1, 0))[self.start + depth]
        return torch.where(depth > 0, value, 0.0)


class Cut:
    r"""What each depth cuts off one of the lists.

    Attributes:
        share: How much of each entry among the ties that the depth cuts; not
            of interest beyond the end of the list.
        norm: The sum of :math:`c(d)^2` (b) or :math:`c(d)` (w), as if a list
            went on without ties beyond its end.
    """
    def __init__(self, depths: Depths, ranking: Ranking, ties: str) -> None:
        first, size = _ties(depths, ranking)
        self.share = (depths.depth - first + 1).double() / size
        if ties == 'a':
            return  # the norm is the depth
        among = size if ties == 'w' else self.share * self.share * size
        beyond = depths.depth > ranking.n[depths.group]
        self.norm = torch.where(beyond, depths.depth, first - 1 + among)


def _ties(depths: Depths, ranking: Ranking) -> Tuple[Tensor, Tensor]:
    """The first rank and the number of the ties at each depth."""
    at = depths.start[ranking.group] + ranking.first - 1
    size = torch.zeros_like(depths.depth)
    size[at] = ranking.last - ranking.first + 1  # all ties write the same
    position = torch.arange(depths.total, device=size.device)
    begin = torch.where(size > 0, position, 0).cummax(0)[0]
    return depths.depth[begin], size[begin].clamp(min=1)


def overlap(depths: Depths, first: Ranking, second: Ranking, cut: Cut,
            other: Cut, ties: str) -> Tensor:
    r"""The sum of :math:`c(d) \, \hat{c}(d)` at each depth, over entries that
    both lists have, in the same order."""
    group = first.group
    if ties == 'w':
        begin = torch.maximum(first.first, second.first)
        return depths.count(group, begin, depths.end(group)).double()
    full = torch.maximum(first.last, second.last) + 1
    out = depths.count(group, full, depths.end(group)).double()
    # One is in front of the cut and the other is among the ties.
    begin = torch.maximum(first.first, second.last + 1)
    out += depths.count(group, begin, first.last + 1) * cut.share
    begin = torch.maximum(second.first, first.last + 1)
    out += depths.count(group, begin, second.last + 1) * other.share
    begin = torch.maximum(first.first, second.first)
    among = depths.count(group, begin,
                         torch.minimum(first.last, second.last) + 1)
    # In this order of products, that of equal lists is Cut.norm.
    return out + cut.share * other.share * among


def agreement(overlap: Tensor, depths: Depths, cut: Cut, other: Cut,
              ties: str) -> Tensor:
    r"""The overlap in relation to the largest possible one."""
    if ties == 'a':
        return overlap / depths.depth
    if ties == 'b':
        # One root: that of a square is exact.
        return overlap / (cut.norm * other.norm).sqrt()
    return 2 * overlap / (cut.norm + other.norm)


class Weights:
    r"""The weights :math:`w_d = (1 - p) \, p^{d-1}` of the depths, or
    :math:`1 / l` without any beyond the last depth :math:`l` for
    :math:`p = 1`."""
    def __init__(self, p: float, depths: Depths) -> None:
        self.depths = depths
        if p == 1.0:
            self.weight = (1.0 / depths.length.double())[depths.group]
            self.beyond = torch.zeros_like(depths.length, dtype=torch.double)
        else:
            self.weight = (1.0 - p) * p**(depths.depth.double() - 1.0)
            self.beyond = p**depths.length.double()

    def sum(self, agreement: Tensor, beyond: Tensor) -> Tensor:
        """The weighted sum for each group, with what is beyond its end.

        Taken from both sides, so that it is exact for 0 and for 1.
        """
        here = sum_to(self.depths.length, self.depths.group,
                      self.weight * agreement) + beyond
        missing = sum_to(self.depths.length, self.depths.group, self.weight *
                         (1.0 - agreement)) + (self.beyond - beyond)
        return torch.where(here < 0.5, here, 1.0 - missing).clamp(0.0, 1.0)


def sum_to(like: Tensor, groups: Tensor, value: Tensor) -> Tensor:
    """The sum over each of as many groups as there are entries in 'like'."""
    return value.new_zeros(like.numel()).index_add(0, groups, value)


def broken_groups(like: Tensor, groups: Tensor, *scores: Tensor) -> Tensor:
    """Which groups hold a score that is NaN."""
    nan = torch.stack([score.isnan() for score in scores]).any(0)
    return sum_to(like, groups, nan.long()) > 0


# The operator ################################################################


def _reference(pred: Tensor, target: Tensor, ptr: Tensor, p: float,
               ties: str) -> Tensor:
    first, second = rank(ptr, pred, target)
    n, depths = first.n, Depths(first.n)
    cuts = Cut(depths, first, ties), Cut(depths, second, ties)
    shared = overlap(depths, first, second, *cuts, ties)
    weights = Weights(p, depths)
    # Both lists hold the same entries: from the end on they agree.
    out = weights.sum(agreement(shared, depths, *cuts, ties), weights.beyond)
    broken = broken_groups(n, first.group, pred, target)
    return out.masked_fill(broken | (n == 0), torch.nan)


def _fake(pred: Tensor, target: Tensor, ptr: Tensor, p: float,
          ties: str) -> Tensor:
    return pred.new_empty(ptr.numel() - 1, dtype=torch.double)


_rank_biased_agreement = define(
    'rank_biased_agreement(Tensor pred, Tensor target, Tensor ptr, float p, '
    'str ties) -> Tensor', _reference, _fake)
