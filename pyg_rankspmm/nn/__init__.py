"""Layers and losses."""
from pyg_rankspmm.nn.ranking_loss import RankingLoss
from pyg_rankspmm.nn.sparse_gat_conv import SparseGATConv

__all__ = ['RankingLoss', 'SparseGATConv']
