r"""Memory and time of mini-batches on a large graph.

.. code-block:: bash

    OMP_NUM_THREADS=1 python -m benchmarks.scale

Makes a bipartite graph whose degrees follow a power law, hides half of its
ratings, and trains two layers of attention to rank them. A step is split into
sampling (which includes gathering the features), the model, the loss and the
optimizer, each forward and backward; what it takes is compared between the
first and the last steps.
"""
from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.nn import HeteroConv

from benchmarks.timing import status
from pyg_rankspmm import RankingLoss, SparseGATConv
from pyg_rankspmm.info import info
from pyg_rankspmm.loader import SourceNodeSampler

RESULTS = Path(__file__).parent / 'results'
RATES = ('user', 'rates', 'item')
RATED_BY = ('item', 'rated_by', 'user')
CHANNELS = 32
BLOCK = 20  # steps that are reported as one
PARTS = ('sampling', 'model', 'loss', 'optimizer')


def make_graph(num_users: int, num_items: int,
               num_ratings: int) -> HeteroData:
    """Stars that follow from hidden vectors of users and items, half of them
    as edges, half as labels. The features are these vectors, with noise."""
    g = torch.Generator().manual_seed(0)

    def draw(num_nodes: int) -> Tensor:
        place = num_nodes * torch.rand(num_ratings, generator=g)**2.2
        label = torch.randperm(num_nodes, generator=g)
        return label[place.long().clamp(max=num_nodes - 1)]

    edge_index = torch.stack([draw(num_users), draw(num_items)])
    latent = {'user': torch.randn(num_users, CHANNELS, generator=g),
              'item': torch.randn(num_items, CHANNELS, generator=g)}
    rating = torch.cat([
        (latent['user'][user] * latent['item'][item]).sum(dim=1)
        for user, item in zip(*(row.split(2**20) for row in edge_index))])
    rating = (3.0 + rating.div_(CHANNELS**0.5)).mul_(2).round_().div_(2)
    rating.clamp_(0.5, 5.0)

    data = HeteroData()
    for key, x in latent.items():
        data[key].x = x + torch.randn(x.shape, generator=g)
    half = num_ratings // 2  # the order is random already
    data[RATES].edge_index = edge_index[:, :half].clone()
    data[RATED_BY].edge_index = edge_index[:, :half].flip(0)
    for edge_type in (RATES, RATED_BY):
        data[edge_type].edge_attr = rating[:half].view(-1, 1).clone()
    data[RATES].edge_label_index = edge_index[:, half:].clone()
    data[RATES].edge_label = rating[half:].clone()
    return data


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([
            HeteroConv({
                edge_type: SparseGATConv((CHANNELS, CHANNELS), CHANNELS // 4,
                                         heads=4, edge_dim=1,
                                         add_self_loops=False)
                for edge_type in (RATES, RATED_BY)
            }) for _ in range(2)
        ])

    def forward(self, batch: HeteroData) -> Tensor:
        x_dict = batch.x_dict
        edges = {key: batch[key].edge_index for key in (RATES, RATED_BY)}
        attrs = {key: batch[key].edge_attr for key in (RATES, RATED_BY)}
        for layer in self.layers:
            out = layer(x_dict, edges, edge_attr_dict=attrs)
            x_dict = {key: x + out[key].relu() for key, x in x_dict.items()}
        user, item = batch[RATES].edge_label_index
        return (x_dict['user'][user] * x_dict['item'][item]).sum(dim=1)


class Clock:
    """Wall clock and CPU time of what is called through it."""
    def __init__(self) -> None:
        self.wall = dict.fromkeys(PARTS, 0.0)
        self.cpu = dict.fromkeys(PARTS, 0.0)

    def __call__(self, part: str, function: Callable[..., Any],
                 *args: Any) -> Any:
        start = time.perf_counter(), time.process_time()
        out = function(*args)
        self.wall[part] += time.perf_counter() - start[0]
        self.cpu[part] += time.process_time() - start[1]
        return out


def train_step(batches: Any, model: Model, criterion: RankingLoss,
               optimizer: torch.optim.Optimizer) -> Dict[str, Any]:
    clock = Clock()
    batch = clock('sampling', next, batches)
    optimizer.zero_grad()
    pred = clock('model', model, batch)
    store = batch[RATES]
    user = batch['user'].n_id[store.edge_label_index[0]]
    loss = clock('loss', criterion, pred, store.edge_label, user)
    grad, = clock('loss', torch.autograd.grad, loss, pred)
    clock('model', pred.backward, grad)
    clock('optimizer', optimizer.step)
    return {
        'wall': clock.wall, 'cpu': clock.cpu, 'loss': loss.item(),
        'ratings': pred.numel(), 'users': user.unique().numel(),
        'nodes': batch.num_nodes,
        'edges': sum(batch[key].num_edges for key in (RATES, RATED_BY)),
        'memory': status('VmRSS'),
    }


def timed(function: Callable[..., Any], *args: Any,
          **kwargs: Any) -> Tuple[Any, float]:
    start = time.perf_counter()
    out = function(*args, **kwargs)
    return out, round(time.perf_counter() - start, 2)


def run(args: argparse.Namespace) -> Dict[str, Any]:
    setup: Dict[str, float] = {}
    data, setup['graph'] = timed(make_graph, args.users, args.items,
                                 args.ratings)
    store = data[RATES]
    sampler, setup['SourceNodeSampler'] = timed(
        SourceNodeSampler, store.edge_label_index, max_edges=args.max_edges,
        shuffle=True)
    _, setup['its number of batches'] = timed(len, sampler)
    loader, setup['LinkNeighborLoader'] = timed(
        LinkNeighborLoader, data, num_neighbors=args.num_neighbors,
        edge_label_index=(RATES, store.edge_label_index),
        edge_label=store.edge_label, batch_sampler=sampler)
    batches = iter(loader)
    _, setup['first batch'] = timed(next, batches)
    torch.manual_seed(0)
    model, criterion = Model(), RankingLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = []
    for i in range(args.steps):
        steps.append(train_step(batches, model, criterion, optimizer))
        if (i + 1) % BLOCK == 0:
            print(f'step {i + 1}:', block(steps[-BLOCK:]), flush=True)
    return summary(sampler, setup, steps)


def block(steps: List[Dict[str, Any]]) -> Dict[str, float]:
    return {
        'seconds': round(median(steps, 'wall'), 3),
        'cpu_seconds': round(median(steps, 'cpu'), 3),
        'loss': round(statistics.mean(step['loss'] for step in steps), 3),
        'memory_bytes': steps[-1]['memory'],
    }


def median(steps: List[Dict[str, Any]], clock: str,
           part: str = '') -> float:
    return statistics.median(
        step[clock][part] if part else sum(step[clock].values())
        for step in steps)


def summary(sampler: SourceNodeSampler, setup: Dict[str, float],
            steps: List[Dict[str, Any]]) -> Dict[str, Any]:
    quarter = max(1, len(steps) // 4)
    first, last = steps[:quarter], steps[-quarter:]
    total = sum(median(steps, 'cpu', part) for part in PARTS)
    return {
        'setup_seconds': setup,
        'batches_in_an_epoch': len(sampler),
        'median_of_a_step': {
            key: statistics.median(step[key] for step in steps)
            for key in ('ratings', 'users', 'nodes', 'edges')
        },
        'seconds': {part: median(steps, 'wall', part) for part in PARTS},
        'cpu_seconds': {part: median(steps, 'cpu', part) for part in PARTS},
        'share_of_cpu': {part: median(steps, 'cpu', part) / total
                         for part in PARTS},
        'step_of_last_quarter_over_first': {
            clock: median(last, clock) / median(first, clock)
            for clock in ('wall', 'cpu')
        },
        'loss_of_first_and_last_quarter': [
            statistics.mean(step['loss'] for step in part)
            for part in (first, last)
        ],
        'memory_bytes': {'after_first_step': steps[0]['memory'],
                         'after_last_step': steps[-1]['memory'],
                         'peak': status('VmHWM')},
        f'every_{BLOCK}_steps': [block(steps[i:i + BLOCK])
                                 for i in range(0, len(steps), BLOCK)],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.scale', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--users', type=int, default=1_000_000)
    add('--items', type=int, default=200_000)
    add('--ratings', type=int, default=50_000_000)
    add('--steps', type=int, default=200)
    add('--max-edges', type=int, default=8192)
    add('--num-neighbors', type=int, nargs='+', default=[10, 5])
    add('--output', type=Path)
    return parser.parse_args()


def main() -> None:
    args = parse()
    result = run(args)
    now = datetime.datetime.now(datetime.timezone.utc)
    output = args.output or RESULTS / f'scale-{now:%Y%m%d-%H%M%S}.json'
    command = (f'OMP_NUM_THREADS={torch.get_num_threads()} python -m '
               f'benchmarks.scale')
    settings = {key: value for key, value in vars(args).items()
                if key != 'output'}
    output.write_text(json.dumps(
        dict(command=command, environment=info(), settings=settings,
             **result), indent=1) + '\n')
    print(json.dumps(result, indent=1))
    print(f'Written to {output}')


if __name__ == '__main__':
    main()
