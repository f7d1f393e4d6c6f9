"""Ranking measures."""
from pyg_rankspmm.metrics import functional

__all__ = ['functional']
