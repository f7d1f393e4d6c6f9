"""Ranking measures as functions."""
from pyg_rankspmm.metrics.functional.kendall import kendall_tau
from pyg_rankspmm.metrics.functional.persistence import rbo_p, rbo_weight
from pyg_rankspmm.metrics.functional.rbo import rank_biased_overlap
from pyg_rankspmm.metrics.functional.rbo_lists import rank_biased_overlap_lists

__all__ = [
    'kendall_tau',
    'rank_biased_overlap',
    'rank_biased_overlap_lists',
    'rbo_p',
    'rbo_weight',
]
