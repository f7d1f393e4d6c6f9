"""What the ranking metrics share: they keep the edges until the end."""
from __future__ import annotations

from typing import Any, List, Tuple, Union

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from pyg_rankspmm.metrics.functional._groups import (
    check_pair,
    check_reduction,
)
from pyg_rankspmm.ops.soft_rank import count_groups

_EXACT = 2.0**53  # up to here float64 knows all whole numbers
_STATES = {'pred': torch.double, 'target': torch.double, 'index': torch.long}


class RankingMetric(Metric):
    """Collects the predictions, targets and groups of all edges.

    A group is only known when its last edge is, and its edges may come in
    several batches, and on several processes. All have to be kept.
    """
    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    pred: Union[Tensor, List[Tensor]]
    target: Union[Tensor, List[Tensor]]
    index: Union[Tensor, List[Tensor]]

    def __init__(self, weighting: str, reduction: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_reduction(weighting, reduction)
        self.weighting, self.reduction = weighting, reduction
        for name in _STATES:
            self.add_state(name, default=[], dist_reduce_fx='cat')

    def update(self, pred: Tensor, target: Tensor, index: Tensor) -> None:
        """Adds edges.

        Args:
            pred (torch.Tensor): The predicted scores, higher is better, shape
                :obj:`[num_edges]`.
            target (torch.Tensor): The true scores, shape :obj:`[num_edges]`,
                any real dtype.
            index (torch.Tensor): The group (source node) of each edge, shape
                :obj:`[num_edges]`.

        Raises:
            TypeError: If an argument has a wrong type or dtype.
            ValueError: If shapes, devices or indices do not fit, or whole
                numbers are too large for float64.
        """
        edges = check_pair(pred, target, index)
        count_groups('index', edges[2])
        _check_exact('target', edges[1])
        for (name, dtype), value in zip(_STATES.items(), edges):
            # A copy: the caller may write over its own.
            getattr(self, name).append(value.to(dtype, copy=True))

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Collects the edges of all processes."""
        for name, dtype in _STATES.items():
            if len(getattr(self, name)) == 0:
                # All have to send the same dtype, also those without edges.
                setattr(self, name, [self._no_edges(dtype)])
        super().sync(*args, **kwargs)

    def set_dtype(self, dst_type: Any) -> Metric:
        """Has no effect: a shorter dtype would make different scores equal.
        """
        return self

    def edges(self) -> Tuple[Tensor, Tensor, Tensor]:
        """All edges so far."""
        pred, target, index = (
            dim_zero_cat(getattr(self, name))
            if len(getattr(self, name)) > 0 else self._no_edges(dtype)
            for name, dtype in _STATES.items())
        return pred, target, index

    def _no_edges(self, dtype: torch.dtype) -> Tensor:
        return torch.empty(0, dtype=dtype, device=self.device)

    def extra_repr(self) -> str:
        return f'weighting={self.weighting!r}, reduction={self.reduction!r}'


def _check_exact(name: str, value: Tensor) -> None:
    if value.dtype not in (torch.int64, torch.uint64) or value.numel() == 0:
        return
    largest = float(value.double().abs().max())
    if largest >= _EXACT:
        raise ValueError(f"'{name}' must hold whole numbers below 2^53, as "
                         f"float64 cannot tell larger neighbours apart (got "
                         f"{largest:.0f}); subtract a constant")
