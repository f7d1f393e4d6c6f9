"""Ranking measures, as functions and as torchmetrics.

There is no Normalized Discounted Cumulative Gain here, since
:class:`torchmetrics.retrieval.RetrievalNormalizedDCG` takes groups of any
size, and its arguments in the same order:

    >>> import torch
    >>> from torchmetrics import MetricCollection
    >>> from torchmetrics.retrieval import RetrievalNormalizedDCG
    >>> metrics = MetricCollection([
    ...     RankBiasedOverlap(), KendallTau(), RetrievalNormalizedDCG(top_k=10)
    ... ])
    >>> pred = torch.tensor([0.9, 0.2, 0.1, 0.3])
    >>> target = torch.tensor([5.0, 3.5, 4.0, 3.0])
    >>> metrics.update(pred, target, torch.tensor([0, 0, 0, 1]))
    >>> {name: round(float(x), 4) for name, x in metrics.compute().items()}
    {'RankBiasedOverlap': 0.9662, 'KendallTau': 0.3333,
    'RetrievalNormalizedDCG': 0.9965}

All groups count the same in it, its gains are the targets themselves, which
must not be negative, and it goes through the groups one by one.
"""
from pyg_rankspmm.metrics import functional
from pyg_rankspmm.metrics.kendall_tau import KendallTau
from pyg_rankspmm.metrics.rank_biased_overlap import RankBiasedOverlap

__all__ = ['KendallTau', 'RankBiasedOverlap', 'functional']
