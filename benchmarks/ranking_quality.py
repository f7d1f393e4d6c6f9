"""Does the ranking loss help? Trains one model with many losses and compares
how well it ranks the test ratings of each user.

.. code-block:: bash

    python -m benchmarks.ranking_quality --dataset movielens
    python -m benchmarks.ranking_report

Every recipe (a loss, perhaps with an anchor) gets the same sweep over learning
rates and weight decays, decided by validation RBO alone: all configurations on
one split, the better half on a second one. The winner is trained on other
splits and tested. The seed draws the split, the weights and the masks. Each
run is a line of the output, and runs that are there already are not repeated.
"""
from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import HeteroData

from benchmarks.ranking_losses import LOSSES, VARIANTS, Loss
from benchmarks.ranking_model import (
    DATASETS,
    RATES,
    Model,
    hide_ratings,
    item_mean,
    ndcg,
)
from pyg_rankspmm.metrics.functional import kendall_tau, rank_biased_overlap

RUNS = Path(__file__).parent / 'results' / 'ranking_quality.jsonl'

SWEEP_SEEDS = (100, 101)
ABLATION_SEEDS = (200, 201, 202, 203)
FINAL_SEEDS = range(10, 20)  # as many of them as the data set needs
LEARNING_RATES = (0.005, 0.01, 0.03)
WEIGHT_DECAYS = (0.3, 1.0)  # decoupled, as in AdamW
SHARE = 0.2  # of the anchor
SIZES = (0.1, 0.2, 0.5)  # of the squared error, as a control

# What is trained ############################################################


class Recipe(NamedTuple):
    """A training loss: the loss of that name, plus a share of another one as
    an anchor, all of it times a size; and what the predictions are multiplied
    with before it sees them."""
    loss: str
    anchor: Optional[str] = None
    size: float = 1.0
    stretch: float = 1.0

    def __str__(self) -> str:
        name = self.loss
        if self.anchor:
            name += f' + {SHARE:g} {self.anchor}'
        if self.size != 1.0:
            name += f' × {self.size:g}'
        if self.stretch != 1.0:
            name += f', predictions × {self.stretch:g}'
        return name

    @property
    def plain(self) -> Recipe:
        """The recipe whose sweep serves this one, too: AdamW takes steps of
        the same length whatever the size of the loss."""
        return Recipe(self.loss, self.anchor)

    def build(self) -> Loss:
        loss = {**LOSSES, **VARIANTS}[self.loss]
        anchor = LOSSES[self.anchor] if self.anchor else None

        def total(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
            pred = self.stretch * pred
            out = loss(pred, target, index)
            if anchor:
                out = out + SHARE * anchor(pred, target, index)
            return self.size * out

        return total


# Those that matter most come first.
RECIPES = [
    Recipe('MSE'),
    Recipe('RankingLoss', 'centered MSE'),
    Recipe('RankNet'),
    Recipe('RankingLoss'),
    Recipe('centered MSE'),
    Recipe('RankingLoss', 'MSE'),
    Recipe('ListNet'),
    Recipe('LambdaRank'),
    Recipe('torchsort RBO'),
    Recipe('ApproxNDCG'),
    *(Recipe('MSE', size=size) for size in SIZES),
    *(Recipe(loss, 'centered MSE') for loss in LOSSES
      if loss not in ('MSE', 'centered MSE', 'RankingLoss')),
]


class Config(NamedTuple):
    lr: float
    weight_decay: float


ABLATION_CONFIG = Config(0.01, 0.3)

CONFIGS = [*itertools.starmap(
    Config, itertools.product(LEARNING_RATES, WEIGHT_DECAYS))]

# One run #####################################################################


def measure(pred: Tensor, target: Tensor, index: Tensor) -> Dict[str, float]:
    args = _two_or_more(pred, target, index)
    return {
        'RBO': float(rank_biased_overlap(*args, p=0.9)),
        'NDCG@10': float(ndcg(*args)),
        'Kendall': float(kendall_tau(*args)),
    }


def _two_or_more(*args: Tensor) -> List[Tensor]:
    index = args[-1]
    keep = torch.bincount(index)[index] >= 2
    return [x[keep] for x in args]


class Held(NamedTuple):
    """The validation and the test ratings, which share a graph."""
    data: HeteroData
    parts: Sequence[HeteroData]

    @classmethod
    def join(cls, *parts: HeteroData) -> Held:
        data = copy.copy(parts[0])
        data[RATES].edge_label_index = torch.cat(
            [part[RATES].edge_label_index for part in parts], dim=1)
        return cls(data, parts)

    @torch.no_grad()
    def predict(self, model: torch.nn.Module) -> Sequence[Tensor]:
        sizes = [part[RATES].edge_label.numel() for part in self.parts]
        return model.eval()(self.data).split(sizes)

    def labels(self, part: int) -> Sequence[Tensor]:
        store = self.parts[part][RATES]
        return store.edge_label, store.edge_label_index[0]


def train(splits: Sequence[HeteroData], loss: Loss, config: Config, seed: int,
          epochs: int, patience: int = 40, every: int = 5) -> Dict[str, Any]:
    """Trains until validation has not improved for 'patience' epochs, and
    returns the test metrics of the epoch that was best in validation."""
    seed_everything(seed)
    model = Model(splits[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr,
                                  weight_decay=config.weight_decay,
                                  fused=True)
    held, best, curve = Held.join(*splits[1:]), (-1.0, 0, None), []
    for epoch in range(1, epochs + 1):
        _step(model, optimizer, splits[0], loss)
        if epoch % every:
            continue
        pred = held.predict(model)
        val, test = (float(rank_biased_overlap(
            *_two_or_more(pred[part], *held.labels(part)), p=0.9))
            for part in (0, 1))
        curve.append([round(val, 5), round(test, 5)])
        if val > best[0]:
            best = (val, epoch, pred[1])
        if epoch - best[1] >= patience:
            break
    if best[2] is None:
        raise RuntimeError(f'no finite prediction with {config}')
    return {'val': best[0], 'epoch': best[1],
            'test': measure(best[2], *held.labels(1)),
            'last': sum(test for _, test in curve[-5:]) / len(curve[-5:]),
            'curve': curve}


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer,
          data: HeteroData, loss: Loss) -> None:
    model.train()
    data = hide_ratings(data, ratio=0.5)
    store = data[RATES]
    optimizer.zero_grad()
    loss(model(data), store.edge_label, store.edge_label_index[0]).backward()
    optimizer.step()


# All runs ####################################################################


class Bench:
    """The runs of a data set, in a file with one line each."""
    def __init__(self, dataset: str, path: Path, epochs: int) -> None:
        self.dataset, self.path, self.epochs = dataset, path, epochs
        self.seeds = FINAL_SEEDS[:DATASETS[dataset].num_seeds]
        ratings = DATASETS[dataset].load()
        self.split = functools.cache(
            functools.partial(DATASETS[dataset].split, ratings))

    @property
    def runs(self) -> List[Dict[str, Any]]:
        """Those in the file, where other processes write, too."""
        return [run for run in read_runs(self.path)
                if run['dataset'] == self.dataset]

    def run(self, stage: str, recipe: Recipe, config: Config,
            seed: int) -> Dict[str, Any]:
        key = dict(dataset=self.dataset, stage=stage, recipe=str(recipe),
                   lr=config.lr, weight_decay=config.weight_decay, seed=seed)
        for run in self.runs:
            if key.items() <= run.items():
                return run
        start = time.perf_counter()
        result = train(self.split(seed), recipe.build(), config, seed,
                       self.epochs)
        run = {**key, **result,
               'seconds': round(time.perf_counter() - start, 1)}
        self.add(run)
        print(f"{self.dataset} {stage} {recipe} {tuple(config)} seed {seed}: "
              f"validation {run['val']:.4f} in epoch {run['epoch']}, test "
              f"{run['test']['RBO']:.4f}, {run['seconds']} s", flush=True)
        return run

    def add(self, run: Dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open('a') as file:
            file.write(json.dumps(run) + '\n')

    def without_a_model(self) -> None:
        """The item means and a random order, on the splits of the test."""
        for seed in self.seeds:
            data = self.split(seed)[2]
            mean, store = item_mean(data), data[RATES]
            generator = torch.Generator().manual_seed(seed)
            noise = torch.rand(mean.numel(), generator=generator)
            for name, pred in (('(item mean)', mean), ('(random)', noise)):
                key = dict(dataset=self.dataset, stage='final', recipe=name,
                           seed=seed)
                if not any(key.items() <= run.items() for run in self.runs):
                    self.add({**key, 'test': measure(
                        pred, store.edge_label, store.edge_label_index[0])})

    def choose(self, recipe: Recipe) -> Config:
        """The configuration with the best validation RBO: all of them on the
        first split, the better half on the others, too."""
        first, *others = SWEEP_SEEDS
        configs = sorted(CONFIGS, key=lambda config: -self.run(
            'sweep', recipe, config, first)['val'])
        return max(configs[:len(configs) // 2], key=lambda config: sum(
            self.run('sweep', recipe, config, seed)['val']
            for seed in (first, *others)))

    def compare(self, recipes: Sequence[Recipe]) -> None:
        for recipe in recipes:
            config = self.choose(recipe.plain)
            for seed in self.seeds:
                self.run('final', recipe, config, seed)

    def stretch(self, recipes: Sequence[Recipe]) -> None:
        """Trains with larger and smaller predictions, all else the same."""
        self.compare([recipe._replace(stretch=factor) for recipe in recipes
                      for factor in (10.0, 0.1)])

    def ablate(self) -> None:
        """RankingLoss with other options, on splits that no other comparison
        looks at."""
        for loss in ('RankingLoss', *VARIANTS):
            for seed in ABLATION_SEEDS:
                self.run('ablation', Recipe(loss), ABLATION_CONFIG, seed)


def read_runs(path: Path) -> List[Dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--dataset', choices=tuple(DATASETS),
                        default='movielens')
    parser.add_argument('--only', nargs='+', metavar='LOSS',
                        choices=[*map(str, RECIPES)],
                        help="as the table names them: 'RankNet'")
    parser.add_argument('--stretch', action='store_true',
                        help='with predictions times 10 and times 0.1')
    parser.add_argument('--ablate', action='store_true',
                        help='RankingLoss with other options')
    parser.add_argument('--part', type=int, nargs=2, default=(0, 1),
                        metavar=('I', 'N'), help='every N-th recipe from the '
                        'I-th on: N processes share the work')
    parser.add_argument('--epochs', type=int, default=200, help='at most')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--out', type=Path, default=RUNS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    bench = Bench(args.dataset, args.out, args.epochs)
    recipes = [recipe for recipe in RECIPES
               if args.only is None or str(recipe) in args.only]
    recipes = recipes[args.part[0]::args.part[1]]
    if args.stretch:
        bench.stretch(recipes)
    elif args.ablate:
        bench.ablate()
    else:
        bench.without_a_model()
        bench.compare(recipes)


if __name__ == '__main__':
    main()
