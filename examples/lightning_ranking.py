r"""The job of ``movielens_minibatch.py`` as users of Lightning write it.

.. code-block:: bash

    python examples/lightning_ranking.py --out here
    python examples/lightning_ranking.py --out here --devices 2
    python examples/lightning_ranking.py --ckpt-path here/last.ckpt

Three things belong to data of this kind: ``use_distributed_sampler=False``,
since the batches know about the processes already;
``reload_dataloaders_every_n_epochs=1``, since each epoch hides other ratings;
and ``RankingLoss(process_group='world')``, which finds the processes that
Lightning starts after the module was made.

Checkpoints are taken between epochs. To go on in the middle of one, keep the
``state_dict`` of the sampler as ``movielens_minibatch.py`` does.
"""
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Sequence

import lightning
import movielens
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from movielens import RATES
from movielens_minibatch import (
    Loss,
    MiniBatchModel,
    make_loader,
    mix,
    without_single_ratings,
)
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader
from torchmetrics import MetricCollection

from pyg_rankspmm import SparseGATConv
from pyg_rankspmm.loader import SourceNodeSampler
from pyg_rankspmm.metrics import KendallTau, RankBiasedOverlap


class RatingsDataModule(lightning.LightningDataModule):
    """The ratings; in each epoch, half of those for training are hidden."""
    def __init__(self, split: int = 0, seed: int = 0, max_edges: int = 8192,
                 num_neighbors: Sequence[int] = (20, 10),
                 num_workers: int = 0) -> None:
        super().__init__()
        self.seed, self.max_edges = seed, max_edges
        self.num_neighbors, self.num_workers = num_neighbors, num_workers
        self.train_data, self.val_data, self.test_data = (
            movielens.split_ratings(movielens.load_ratings(), seed=split))

    def train_dataloader(self) -> LinkNeighborLoader:
        epoch = self.trainer.current_epoch if self.trainer else 0
        seed = mix(self.seed, epoch)
        data = movielens.hide_ratings(
            self.train_data, generator=torch.Generator().manual_seed(seed))
        sampler = SourceNodeSampler.from_data(
            data, RATES, max_edges=self.max_edges, shuffle=True,
            seed=self.seed)
        sampler.set_epoch(epoch)
        return make_loader(data, sampler, self.num_neighbors, seed,
                           self.num_workers)

    def val_dataloader(self) -> LinkNeighborLoader:
        return self._all_neighbors(self.val_data)

    def test_dataloader(self) -> LinkNeighborLoader:
        return self._all_neighbors(self.test_data)

    def _all_neighbors(self, data: HeteroData) -> LinkNeighborLoader:
        data = without_single_ratings(data)
        sampler = SourceNodeSampler.from_data(data, RATES,
                                              max_edges=self.max_edges)
        return make_loader(data, sampler, [-1, -1], seed=0,
                           num_workers=self.num_workers)


class RankingModule(lightning.LightningModule):
    """The model, its loss and its metrics."""
    def __init__(self, data: HeteroData, lr: float = 0.02) -> None:
        super().__init__()
        self.lr = lr
        self.model = MiniBatchModel(SparseGATConv, data)
        self.loss = Loss(data)
        metrics = MetricCollection({'rbo': RankBiasedOverlap(p=0.9),
                                    'kendall': KendallTau()})
        self.val_metrics = metrics.clone(prefix='val_')
        self.test_metrics = metrics.clone(prefix='test_')

    def forward(self, batch: HeteroData) -> Tensor:
        return self.model(batch)

    def training_step(self, batch: HeteroData, batch_idx: int) -> Tensor:
        loss = self.loss(self(batch), batch)
        self.log('train_loss', loss, on_step=False, on_epoch=True,
                 sync_dist=True, batch_size=1, prog_bar=True)
        return loss

    def validation_step(self, batch: HeteroData, batch_idx: int) -> None:
        self._update(self.val_metrics, batch)
        self.log_dict(self.val_metrics, batch_size=1, prog_bar=True)

    def test_step(self, batch: HeteroData, batch_idx: int) -> None:
        self._update(self.test_metrics, batch)
        self.log_dict(self.test_metrics, batch_size=1)

    def _update(self, metrics: MetricCollection, batch: HeteroData) -> None:
        store = batch[RATES]
        metrics.update(self(batch), store.edge_label,
                       batch['user'].n_id[store.edge_label_index[0]])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr,
                                weight_decay=1e-4)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Ranks the movies of each user, with Lightning.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add('--max-epochs', type=int, default=80, help='at most, in all')
    add('--patience', type=int, default=20,
        help='epochs without a better validation RBO before it ends')
    add('--max-edges', type=int, default=8192,
        help='ratings to rank in a batch of one process, at most')
    add('--num-workers', type=int, default=0,
        help='processes that sample ahead')
    add('--seed', type=int, default=0,
        help='of weights, dropout, hidden ratings, batches and neighbors')
    add('--split', type=int, default=0, help='seed of the split')
    add('--lr', type=float, default=0.02, help='learning rate')
    add('--accelerator', default='cpu', help="such as 'cpu' or 'gpu'")
    add('--devices', type=int, default=1, help='processes')
    add('--out', type=Path, default=Path('outputs/lightning'), metavar='DIR',
        help='for the checkpoints')
    add('--ckpt-path', type=Path, metavar='CHECKPOINT', help='go on from here')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Any:
    """Trains, tests, and returns the metrics of the test."""
    args = parse_args(argv)
    lightning.seed_everything(args.seed)
    data = RatingsDataModule(args.split, args.seed, args.max_edges,
                             num_workers=args.num_workers)
    module = RankingModule(data.train_data, args.lr)
    best = ModelCheckpoint(args.out, monitor='val_rbo', mode='max')
    last = ModelCheckpoint(args.out, filename='last',
                           enable_version_counter=False)
    trainer = lightning.Trainer(
        accelerator=args.accelerator,
        devices=args.devices,
        strategy='ddp' if args.devices > 1 else 'auto',
        max_epochs=args.max_epochs,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        callbacks=[best, last, EarlyStopping('val_rbo', mode='max',
                                             patience=args.patience)],
        logger=False,
    )
    trainer.fit(module, data, ckpt_path=args.ckpt_path)
    return trainer.test(module, data, ckpt_path='best')


if __name__ == '__main__':
    main()
