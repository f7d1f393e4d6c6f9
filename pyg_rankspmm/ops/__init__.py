"""Operators on tensors, with gradients."""
from pyg_rankspmm.ops.attention import attention
from pyg_rankspmm.ops.soft_rank import soft_rank
from pyg_rankspmm.ops.spmm import SpecialSpmm, sddmm, spmm

__all__ = ['SpecialSpmm', 'attention', 'sddmm', 'soft_rank', 'spmm']
