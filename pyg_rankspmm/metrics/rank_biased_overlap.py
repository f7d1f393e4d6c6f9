"""Rank-Biased Overlap over many batches."""
from __future__ import annotations

from typing import Any

import torch

from pyg_rankspmm.metrics._ranking import RankingMetric
from pyg_rankspmm.metrics.functional import rank_biased_overlap
from pyg_rankspmm.metrics.functional._groups import check_variant


class RankBiasedOverlap(RankingMetric):
    r"""The mean Rank-Biased Overlap (RBO) between the order of the predictions
    and the true order of the edges of each source node, a
    :class:`torchmetrics.Metric`. See
    :func:`~pyg_rankspmm.metrics.functional.rank_biased_overlap`.

    The edges of a source node may come in any number of batches and on any
    number of processes: they are ranked together in the end. For that all are
    kept, with 24 bytes for each edge, on the device of the predictions
    (:obj:`compute_on_cpu=True` moves them); in the end each process has those
    of all. Edges that a sampler draws twice count twice.

    Args:
        p (float, optional): The persistence :math:`0 < p \leq 1`.
            (default: :obj:`0.9`)
        ties (str, optional): The variant for ties: :obj:`"a"`, :obj:`"b"` or
            :obj:`"w"`. (default: :obj:`"a"`)
        weighting (str, optional): Whether a source node counts as much as it
            has edges (:obj:`"degree"`), or all the same (:obj:`"uniform"`).
            (default: :obj:`"degree"`)
        reduction (str, optional): The mean over all source nodes with edges
            (:obj:`"mean"`), or the value of each, :obj:`NaN` for those without
            (:obj:`"none"`). (default: :obj:`"mean"`)
        **kwargs (optional): Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = RankBiasedOverlap(p=0.9)
        >>> metric.update(torch.tensor([0.9, 0.1]), torch.tensor([5.0, 3.0]),
        ...               index=torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([0.2, 0.8]), torch.tensor([4.0, 3.5]),
        ...               index=torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        p: float = 0.9,
        ties: str = 'a',
        weighting: str = 'degree',
        reduction: str = 'mean',
        **kwargs: Any,
    ) -> None:
        super().__init__(weighting, reduction, **kwargs)
        self.p, self.ties = check_variant(p, ties), ties

    def compute(self) -> torch.Tensor:
        """The value for all edges so far, float64; :obj:`NaN` without any."""
        return rank_biased_overlap(*self.edges(), self.p, self.ties,
                                   self.weighting, self.reduction)

    def extra_repr(self) -> str:
        return f'p={self.p}, ties={self.ties!r}, {super().extra_repr()}'
