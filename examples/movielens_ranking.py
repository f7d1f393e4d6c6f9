r"""Ranks the movies of each user: attention on a heterogeneous graph, trained
with a differentiable ranking loss.

.. code-block:: bash

    python examples/movielens_ranking.py                # rbo+mse
    python examples/movielens_ranking.py --loss mse     # the baseline
    python examples/movielens_ranking.py --resume outputs/movielens/last.pt
"""
from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

import movielens
import torch
import torch.nn.functional as F
from movielens import EDGE_TYPES, RATED_BY, RATES
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv
from torch_geometric.utils import scatter
from tqdm import tqdm

from pyg_rankspmm import RankingLoss, SparseGATConv
from pyg_rankspmm.metrics.functional import (
    kendall_tau,
    normalized_dcg,
    rank_biased_overlap,
)

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

CONVS = {'sparse': SparseGATConv, 'pyg': GATConv}
LOSSES = ('rbo', 'mse', 'rbo+mse')
METRICS = ('RBO', 'NDCG@10', 'Kendall')


# Model #######################################################################


class RatingFeatures(NamedTuple):
    """What the visible ratings say about a node or an edge by themselves."""
    user: Tensor
    movie: Tensor
    edge: Tensor


def rating_features(data: HeteroData, shrink: float = 5.0) -> RatingFeatures:
    """Means and counts of those ratings that carry messages, and no others:
    the hidden ones must not show through a mean."""
    user, movie = data[RATES].edge_index
    rating = data[RATES].rating
    num_users, num_movies = data['user'].num_nodes, data['movie'].num_nodes

    center = rating - rating.mean()
    user_count = scatter(torch.ones_like(rating), user, 0, num_users)
    user_mean = scatter(center, user, 0, num_users) / (user_count + shrink)
    center = center - user_mean[user]
    movie_count = scatter(torch.ones_like(rating), movie, 0, num_movies)
    movie_mean = scatter(center, movie, 0, num_movies)
    movie_mean = movie_mean / (movie_count + shrink)
    return RatingFeatures(
        user=torch.stack([user_mean, _log_share(user_count)], dim=1),
        movie=torch.stack([movie_mean, _log_share(movie_count)], dim=1),
        edge=torch.stack([center, center - movie_mean[movie]], dim=1),
    )


def _log_share(count: Tensor) -> Tensor:
    # Relative to the mean count, since more ratings are visible in the test
    # than in training.
    return (1.0 + count / count.mean()).log()


class RankingModel(torch.nn.Module):
    r"""Two layers of attention over all relations, then a score for each
    asked edge: the inner product of its ends plus a bias of each.

    Args:
        conv (type): :class:`SparseGATConv` or :class:`GATConv`.
        data (HeteroData): Tells the number of nodes and features.
        channels (int, optional): The size of an embedding.
        heads (int, optional): The number of attention heads.
        dropout (float, optional): Of the embeddings.
    """
    def __init__(self, conv: type[GATConv], data: HeteroData,
                 channels: int = 64, heads: int = 4,
                 dropout: float = 0.3) -> None:
        super().__init__()
        self.dropout = dropout
        self.node_type = ('user', 'movie')
        num_features = {'user': 2, 'movie': 2 + data['movie'].x.size(1)}
        self.emb = torch.nn.ModuleDict({
            key: torch.nn.Embedding(data[key].num_nodes, channels)
            for key in num_features
        })
        self.lin = torch.nn.ModuleDict({
            key: torch.nn.Linear(size, channels)
            for key, size in num_features.items()
        })
        self.convs = torch.nn.ModuleList([
            HeteroConv({
                edge_type: conv((channels, channels), channels // heads, heads,
                                add_self_loops=False,
                                edge_dim=2 if 'rate' in edge_type[1] else None)
                for edge_type in EDGE_TYPES
            }) for _ in range(2)
        ])
        self.norms = torch.nn.ModuleList([
            torch.nn.ModuleDict({
                key: torch.nn.LayerNorm(channels)
                for key in num_features
            }) for _ in range(2)
        ])
        self.bias = torch.nn.ModuleDict({
            key: torch.nn.Linear(channels + 2, 1)
            for key in num_features
        })
        self.mean = torch.nn.Parameter(data[RATES].rating.mean())
        for emb in self.emb.values():
            torch.nn.init.normal_(emb.weight, std=0.1)

    def forward(self, data: HeteroData) -> Tensor:
        """The scores of :obj:`edge_label_index`, :obj:`[num_edges]`."""
        rated = rating_features(data)
        features = {
            'user': rated.user,
            'movie': torch.cat([rated.movie, data['movie'].x], dim=1)
        }
        x_dict = {
            key: self.emb[key].weight + self.lin[key](x)
            for key, x in features.items()
        }
        edge_attr_dict = {RATES: rated.edge, RATED_BY: rated.edge}
        for conv, norms in zip(self.convs, self.norms):
            out_dict = conv(x_dict, data.edge_index_dict,
                            edge_attr_dict=edge_attr_dict)
            x_dict = {
                key: x + self._drop(F.elu(norms[key](out_dict[key])))
                for key, x in x_dict.items()
            }
        user, movie = data[RATES].edge_label_index
        bias = {
            key: self.bias[key](
                torch.cat([self._drop(x), features[key][:, :2]], dim=1))
            for key, x in x_dict.items()
        }
        dot = (x_dict['user'][user] * x_dict['movie'][movie]).mean(dim=1)
        return (self.mean + dot + bias['user'][user, 0]
                + bias['movie'][movie, 0])

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)
