"""Mini-batches that keep the edges of a source node together."""
from pyg_rankspmm.loader.source_node_sampler import SourceNodeSampler

__all__ = ['SourceNodeSampler']
