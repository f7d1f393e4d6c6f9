"""Sparse attention and ranking losses for PyTorch Geometric."""
__version__ = '0.1.0'
