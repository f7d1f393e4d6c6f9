"""Scores in groups: their checks, sums and means."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_rankspmm.graph import group
from pyg_rankspmm.ops.reference import caller_groups
from pyg_rankspmm.ops.soft_rank import (
    check_groups,
    check_target,
    count_groups,
    tie_spans,
    without_gaps,
)
from pyg_rankspmm.typing import check_choice, check_float, flatten


class Ranking(NamedTuple):
    r"""One ranked list for each group, its entries in the caller's order.

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


def rank(ptr: Tensor, perm: Optional[Tensor],
         *scores: Tensor) -> Tuple[Ranking, ...]:
    """Ranks by falling score the entries of groups, which come as from
    :func:`~pyg_rankspmm.graph.group`, once for each score."""
    n, groups = ptr.diff(), caller_groups(ptr, perm, scores[0].numel())
    return tuple(
        Ranking(groups, first.long(), last.long(), n)
        for first, last in (tie_spans(score, ptr, perm) for score in scores))


def check_pair(pred: Any, target: Any,
               index: Any) -> Tuple[Tensor, Tensor, Tensor]:
    """Checks predictions, targets and the group of each edge."""
    pred = flatten('pred', check_float('pred', pred)).detach()
    target = check_target(target, pred)
    return pred, target, check_groups('index', index, pred, 'pred')


def check_reduction(weighting: Any, reduction: Any) -> None:
    check_choice('weighting', weighting, ('degree', 'uniform'))
    check_choice('reduction', reduction, ('mean', 'none'))


def group_pairs(index: Tensor, dim_size: Optional[int],
                reduction: str) -> Tuple[Tensor, Tensor]:
    """Groups the edges; a mean does not see which groups are empty."""
    num_groups = count_groups('index', index, dim_size)
    if reduction == 'mean':
        index, num_groups = without_gaps(index, num_groups)
    return group(index, num_groups)


def joint_rank(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]:
    """The order by x, then y, and a number for each pair (x, y), dense from 0
    on."""
    order = torch.sort(y, stable=True)[1]
    order = order[torch.sort(x[order], stable=True)[1]]
    new = (x[order].diff() != 0) | (y[order].diff() != 0)
    number = F.pad(new.long().cumsum(0), (1, 0))[:x.numel()]
    return order, torch.zeros_like(x).index_copy(0, order, number)


def sum_to(like: Tensor, groups: Tensor, value: Tensor) -> Tensor:
    """The sum over each of as many groups as there are entries in 'like'."""
    return value.new_zeros(like.numel()).index_add(0, groups, value)


def broken_groups(like: Tensor, groups: Tensor, *scores: Tensor) -> Tensor:
    """Which groups hold a score that is NaN."""
    nan = torch.stack([score.isnan() for score in scores]).any(0)
    return sum_to(like, groups, nan.long()) > 0


def reduce_groups(value: Tensor, n: Tensor, keep: Tensor, weighting: str,
                  reduction: str) -> Tensor:
    """The weighted mean over the groups to keep."""
    if reduction == 'none':
        return value
    weight = keep * (n if weighting == 'degree' else keep)
    value = torch.where(keep, value, 0.0)
    return (weight * value).sum() / weight.sum()
