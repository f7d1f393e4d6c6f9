"""Kendall's rank correlation over many batches."""
from __future__ import annotations

from typing import Any

import torch

from pyg_rankspmm.metrics._ranking import RankingMetric
from pyg_rankspmm.metrics.functional import kendall_tau


class KendallTau(RankingMetric):
    r"""The mean of Kendall's :math:`\tau_b` between predictions and targets of
    the edges of each source node, a :class:`torchmetrics.Metric`. See
    :func:`~pyg_rankspmm.metrics.functional.kendall_tau`.

    It is undefined for source nodes whose predictions or targets are all
    equal, such as those with a single edge: they are left out of the mean.

    All edges are kept, as in :class:`RankBiasedOverlap`. In a
    :class:`torchmetrics.MetricCollection` the two keep them once.

    Args:
        weighting (str, optional): Whether a source node counts as much as it
            has edges (:obj:`"degree"`), or all the same (:obj:`"uniform"`).
            (default: :obj:`"degree"`)
        reduction (str, optional): The mean over all source nodes for which it
            is defined (:obj:`"mean"`), or the value of each (:obj:`"none"`).
            (default: :obj:`"mean"`)
        **kwargs (optional): Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = KendallTau()
        >>> metric(torch.tensor([0.1, 0.2, 0.3, 0.4]),
        ...        torch.tensor([1.0, 2.0, 4.0, 3.0]),
        ...        index=torch.tensor([0, 0, 0, 0]))
        tensor(0.6667, dtype=torch.float64)
    """
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        weighting: str = 'degree',
        reduction: str = 'mean',
        **kwargs: Any,
    ) -> None:
        super().__init__(weighting, reduction, **kwargs)

    def compute(self) -> torch.Tensor:
        """The value for all edges so far, float64; :obj:`NaN` if it is
        undefined for all source nodes."""
        return kendall_tau(*self.edges(), self.weighting, self.reduction)
