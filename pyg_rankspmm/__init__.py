"""Sparse attention and ranking losses for PyTorch Geometric."""
from pyg_rankspmm import (
    _native,  # noqa: F401  (puts the kernels under ops)
    loader,
    metrics,
    nn,
)
from pyg_rankspmm.nn import RankingLoss, SparseGATConv
from pyg_rankspmm.ops import SpecialSpmm, sddmm, soft_rank, spmm

__version__ = '0.1.0'

__all__ = [
    'RankingLoss',
    'SparseGATConv',
    'SpecialSpmm',
    'loader',
    'metrics',
    'nn',
    'sddmm',
    'soft_rank',
    'spmm',
]
