r"""The job of ``movielens_ranking.py`` in mini-batches, for graphs that do not
fit one batch, in one process or several.

.. code-block:: bash

    python examples/movielens_minibatch.py --out here
    torchrun --nproc-per-node=2 examples/movielens_minibatch.py --out here
    python examples/movielens_minibatch.py --resume here/checkpoint.pt

In each epoch, half of the training ratings are hidden. The other half carries
the messages; the hidden ones are ranked, in batches that hold all those of a
user. All random numbers follow from the seed, the epoch and the batch: an
interrupted run goes on as if nothing had happened.
"""
from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, Sequence

import movielens
import numpy as np
import torch
import torch.distributed as dist
from movielens import RATES
from movielens_ranking import (
    EDGE_TYPES,
    NODE_TYPES,
    RATED,
    RankingModel,
    load_checkpoint,
    node_features,
    rating_features,
    split_by_sign,
    variance_within_users,
)
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.sampler import EdgeSamplerInput, NeighborSampler
from torchmetrics import MetricCollection
from tqdm import tqdm

from pyg_rankspmm import RankingLoss, SparseGATConv
from pyg_rankspmm.loader import SourceNodeSampler
from pyg_rankspmm.metrics import KendallTau, RankBiasedOverlap

METRICS = ('RBO', 'Kendall')

# Random numbers ##############################################################


def mix(*key: int) -> int:
    """A seed for each key. Seeds that are sums would meet again."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


class ReproducibleSampler(NeighborSampler):
    """Draws the neighbors of a batch by the seed and the batch alone, in
    whichever process, and whatever was drawn before."""
    def __init__(self, data: HeteroData, num_neighbors: Sequence[int],
                 seed: int) -> None:
        super().__init__(data, list(num_neighbors))
        self.seed = seed

    def sample_from_edges(self, inputs: EdgeSamplerInput,
                          **kwargs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(self.seed, *inputs.input_id[:4].tolist()))
            return super().sample_from_edges(inputs, **kwargs)


# Data ########################################################################


def message_graph(data: HeteroData) -> HeteroData:
    """The graph to sample from: the visible ratings, and what they say about
    the nodes, as the model wants it. Of the hidden ones there is no trace."""
    rated = rating_features(data)
    edge_index_dict, edge_attr_dict = split_by_sign(data, rated.edge)
    graph = HeteroData()
    for key, x in node_features(data, rated).items():
        graph[key].x = x
    for edge_type, edge_index in edge_index_dict.items():
        graph[edge_type].edge_index = edge_index
    for edge_type, edge_attr in edge_attr_dict.items():
        graph[edge_type].edge_attr = edge_attr
    return graph


def make_loader(data: HeteroData, sampler: SourceNodeSampler,
                num_neighbors: Sequence[int], seed: int,
                num_workers: int = 0) -> LinkNeighborLoader:
    """Batches of the asked ratings of whole users, with their neighbors."""
    graph = message_graph(data)
    return LinkNeighborLoader(
        graph,
        num_neighbors=list(num_neighbors),
        neighbor_sampler=ReproducibleSampler(graph, num_neighbors, seed),
        edge_label_index=(RATES, data[RATES].edge_label_index),
        edge_label=data[RATES].edge_label,
        batch_sampler=sampler,
        num_workers=num_workers,
    )


def without_single_ratings(data: HeteroData) -> HeteroData:
    """Asks for the ratings of those users who have two or more."""
    data = data.clone()
    store = data[RATES]
    user = store.edge_label_index[0]
    keep = torch.bincount(user)[user] >= 2
    store.edge_label_index = store.edge_label_index[:, keep]
    store.edge_label = store.edge_label[keep]
    return data


# Model and loss ##############################################################


class MiniBatchModel(RankingModel):
    """The model of the full-batch example on a sampled graph."""
    def forward(self, batch: HeteroData) -> Tensor:
        emb = {key: self.emb[key][batch[key].n_id] for key in NODE_TYPES}
        return self.score(
            {key: batch[key].x for key in NODE_TYPES}, emb,
            {key: batch[key].edge_index for key in EDGE_TYPES},
            {key: batch[key].edge_attr for key in RATED},
            batch[RATES].edge_label_index)


class Loss:
    """The ranking loss and its anchor, over the edges of all processes."""
    def __init__(self, data: HeteroData) -> None:
        self.ranking = RankingLoss(p=1.0, temperature=0.3,
                                   process_group='world')
        self.variance = variance_within_users(data)

    def __call__(self, pred: Tensor, batch: HeteroData) -> Tensor:
        store = batch[RATES]
        user = batch['user'].n_id[store.edge_label_index[0]]
        square = mean_over_all((pred - store.edge_label).square())
        return (self.ranking(pred, store.edge_label, user)
                + 0.2 * square / self.variance)


def mean_over_all(value: Tensor) -> Tensor:
    """The part that a process has in the mean over the edges of all of them,
    times their number: of this, :class:`DistributedDataParallel` takes the
    mean."""
    count = torch.tensor(value.numel(), device=value.device)
    if not dist.is_initialized():
        return value.sum() / count.clamp(min=1)
    dist.all_reduce(count)
    return dist.get_world_size() * value.sum() / count.clamp(min=1)


# Training ####################################################################


class Trainer:
    """Trains, validates after each epoch, and remembers the best state."""
    def __init__(self, args: argparse.Namespace, train_data: HeteroData,
                 val_data: HeteroData) -> None:
        self.args = args
        self.train_data, self.val_data = train_data, val_data
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        torch.manual_seed(args.seed)
        self.model = MiniBatchModel(SparseGATConv, train_data).to(args.device)
        self.parallel: torch.nn.Module = self.model
        if dist.is_initialized():
            self.parallel = DistributedDataParallel(self.model)
        self.loss = Loss(train_data)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr,
                                          weight_decay=1e-4)
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] = {'epoch': 0, 'RBO': -1.0, 'model': {}}
        # Of an epoch that was interrupted.
        self.loss_sum = 0.0
        self.sampler_state: dict[str, Any] | None = None

    def fit(self) -> None:
        args = self.args
        with tqdm(total=args.epochs, initial=len(self.history),
                  desc='Training', disable=self.rank > 0) as bar:
            for epoch in range(len(self.history), args.epochs):
                if epoch - self.best['epoch'] >= args.patience:
                    break
                loss = self.train_epoch(epoch)
                metrics = self.evaluate(self.val_data)
                self.history.append({'loss': loss, **metrics})
                if metrics['RBO'] > self.best['RBO']:
                    self.best = {
                        'epoch': epoch + 1,
                        'RBO': metrics['RBO'],
                        'model': {key: value.clone() for key, value in
                                  self.model.state_dict().items()},
                    }
                self.loss_sum, self.sampler_state = 0.0, None
                self.save()
                bar.update()
                bar.set_postfix(loss=f'{loss:.4f}',
                                val_rbo=f"{metrics['RBO']:.4f}",
                                best=f"{self.best['RBO']:.4f}")

    def train_epoch(self, epoch: int) -> float:
        args = self.args
        seed = mix(args.seed, epoch)
        data = movielens.hide_ratings(
            self.train_data, generator=torch.Generator().manual_seed(seed))
        sampler = SourceNodeSampler.from_data(
            data, RATES, max_edges=args.max_edges, shuffle=True,
            seed=args.seed)
        sampler.set_epoch(epoch)
        if self.sampler_state is not None:
            sampler.load_state_dict(self.sampler_state)
        loader = make_loader(data, sampler, args.num_neighbors, seed,
                             args.num_workers)
        for i, batch in enumerate(loader, start=sampler.start):
            self.loss_sum += self.step(batch, mix(seed, i, self.rank))
            # The batches that are done with: workers ask for more.
            self.sampler_state = sampler.state_dict(num_batches=i + 1)
            if (i + 1) % args.checkpoint_every == 0:
                self.save()
        return self.loss_sum / len(sampler)

    def step(self, batch: HeteroData, seed: int) -> float:
        torch.manual_seed(seed)  # of dropout
        self.parallel.train()
        batch = batch.to(self.args.device)
        self.optimizer.zero_grad()
        loss = self.loss(self.parallel(batch), batch)
        loss.backward()
        self.optimizer.step()
        loss = loss.detach()
        if dist.is_initialized():  # the mean is the loss of all edges
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
        return float(loss)

    @torch.no_grad()
    def evaluate(self, data: HeteroData) -> dict[str, float]:
        """Each process ranks a part of the users, with all neighbors."""
        self.model.eval()
        data = without_single_ratings(data)
        sampler = SourceNodeSampler.from_data(data, RATES,
                                              max_edges=self.args.max_edges)
        metrics = MetricCollection({'RBO': RankBiasedOverlap(p=0.9),
                                    'Kendall': KendallTau()})
        metrics = metrics.to(self.args.device)
        for batch in make_loader(data, sampler, [-1, -1], seed=0):
            batch = batch.to(self.args.device)
            store = batch[RATES]
            metrics.update(self.model(batch), store.edge_label,
                           batch['user'].n_id[store.edge_label_index[0]])
        # Collects what all processes have.
        return {key: float(x) for key, x in metrics.compute().items()}

    def save(self) -> None:
        if self.rank > 0:
            return
        path = self.args.out / 'checkpoint.pt'
        # Whoever is killed while writing still has the last one.
        torch.save({
            'settings': {key: getattr(self.args, key) for key in SETTINGS},
            'model': self.model.state_dict(),
            'optimizer': self.optimizer.state_dict(),
            'history': self.history,
            'best': self.best,
            'loss_sum': self.loss_sum,
            'sampler': self.sampler_state,
        }, path.with_suffix('.tmp'))
        path.with_suffix('.tmp').replace(path)

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state['model'])
        self.optimizer.load_state_dict(state['optimizer'])
        self.history, self.best = state['history'], state['best']
        self.loss_sum = state['loss_sum']
        self.sampler_state = state['sampler']


# Command line ################################################################

# What a checkpoint brings along, unless the command line says otherwise.
SETTINGS = ('seed', 'split', 'lr', 'max_edges', 'num_neighbors')


def parse_args(
    argv: Sequence[str] | None = None,
) -> tuple[argparse.Namespace, dict[str, Any] | None]:
    """The options, and the state of the checkpoint to take up."""
    parser = argparse.ArgumentParser(
        description='Ranks the movies of each user, in mini-batches.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add('--epochs', type=int, default=80, help='at most, in all')
    add('--patience', type=int, default=20,
        help='epochs without a better validation RBO before it ends')
    add('--max-edges', type=int, default=8192,
        help='ratings to rank in a batch of one process, at most')
    add('--num-neighbors', type=int, nargs=2, default=[20, 10],
        help='of each relation, in each layer')
    add('--num-workers', type=int, default=0,
        help='processes that sample ahead')
    add('--checkpoint-every', type=int, default=5,
        help='batches between two checkpoints in an epoch')
    add('--seed', type=int, default=0,
        help='of weights, dropout, hidden ratings, batches and neighbors')
    add('--split', type=int, default=0, help='seed of the split')
    add('--lr', type=float, default=0.02, help='learning rate')
    add('--device', default='cpu',
        help="such as 'cpu', or 'cuda' for a GPU for each process")
    add('--out', type=Path, default=Path('outputs/movielens_minibatch'),
        metavar='DIR', help='for checkpoint.pt; with --resume, by default '
        'where that one is')
    add('--resume', type=Path, metavar='CHECKPOINT',
        help='go on from here, with its settings and as many processes')
    args = parser.parse_args(argv)
    if args.resume is None:
        return args, None
    state = load_checkpoint(args.resume, 'cpu', 'loss_sum')
    parser.set_defaults(out=args.resume.parent, **state['settings'])
    return parser.parse_args(argv), state


def init_processes(device: str) -> str:
    """Joins the processes that torchrun has started; the device of this
    one."""
    if 'RANK' not in os.environ:
        return device
    if device == 'cuda':
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group('nccl' if 'cuda' in device else 'gloo')
    return device


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, tests, and returns the metrics of the test."""
    args, state = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    args.device = init_processes(args.device)
    train_data, val_data, test_data = movielens.split_ratings(
        movielens.load_ratings(), seed=args.split)
    trainer = Trainer(args, train_data, val_data)
    if state is not None:
        trainer.load(state)
    trainer.fit()
    trainer.model.load_state_dict(trainer.best['model'])
    metrics = trainer.evaluate(test_data)
    if trainer.rank == 0:
        print(f"Best of {len(trainer.history)} epochs by validation RBO: "
              f"{trainer.best['epoch']}. "
              f"{time.perf_counter() - start:.0f} seconds. Test ratings: "
              + ', '.join(f'{key} {metrics[key]:.4f}' for key in METRICS))
    if dist.is_initialized():
        dist.destroy_process_group()
    return metrics


if __name__ == '__main__':
    main()
