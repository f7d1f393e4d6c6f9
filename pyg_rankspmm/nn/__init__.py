"""Layers and losses."""
from pyg_rankspmm.nn.sparse_gat_conv import SparseGATConv

__all__ = ['SparseGATConv']
