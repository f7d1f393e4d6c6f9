"""Scores in groups: their checks, sums and means."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_rankspmm.graph import arrange, group
from pyg_rankspmm.ops.soft_rank import (
    check_groups,
    check_target,
    count_groups,
    without_gaps,
)
from pyg_rankspmm.typing import (
    check_choice,
    check_float,
    check_probability,
    flatten,
)


def check_pair(pred: Any, target: Any,
               index: Any) -> Tuple[Tensor, Tensor, Tensor]:
    """Checks predictions, targets and the group of each edge."""
    pred = flatten('pred', check_float('pred', pred)).detach()
    target = check_target(target, pred)
    return pred, target, check_groups('index', index, pred, 'pred')


def check_reduction(weighting: Any, reduction: Any) -> None:
    check_choice('weighting', weighting, ('degree', 'uniform'))
    check_choice('reduction', reduction, ('mean', 'none'))


def group_pairs(pred: Tensor, target: Tensor, index: Tensor,
                dim_size: Optional[int],
                reduction: str) -> Tuple[Tensor, Tensor, Tensor]:
    """Predictions and targets side by side in their groups, and where these
    begin. A mean does not see which groups are empty."""
    num_groups = count_groups('index', index, dim_size)
    if reduction == 'mean':
        index, num_groups = without_gaps(index, num_groups)
    ptr, place = group(index, num_groups)
    return arrange(pred, place), arrange(target, place), ptr


def joint_rank(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]:
    """The order by x, then y, and a number for each pair (x, y), dense from 0
    on."""
    order = torch.sort(y, stable=True)[1]
    order = order[torch.sort(x[order], stable=True)[1]]
    new = (x[order].diff() != 0) | (y[order].diff() != 0)
    number = F.pad(new.long().cumsum(0), (1, 0))[:x.numel()]
    return order, torch.zeros_like(x).index_copy(0, order, number)


def check_variant(p: Any, ties: Any) -> float:
    check_choice('ties', ties, ('a', 'b', 'w'))
    return check_probability('p', p)


def reduce_groups(value: Tensor, n: Tensor, keep: Tensor, weighting: str,
                  reduction: str) -> Tensor:
    """The weighted mean over the groups to keep."""
    if reduction == 'none':
        return value
    weight = keep * (n if weighting == 'degree' else keep)
    value = torch.where(keep, value, 0.0)
    return (weight * value).sum() / weight.sum()
