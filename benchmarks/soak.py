"""Thousands of training steps on graphs that change, with an eye on memory
and speed: ``make soak``.

Every step draws a new graph of another size, in the next of PyG's forms, and
trains a layer and a loss on it. What the process holds after a warm-up must
not grow by more than 1 %, and the last steps must not take more time of the
processor than the first: each tenth of the run draws the same graphs.
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Iterator, List

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from pyg_rankspmm import RankingLoss, SparseGATConv

FORMS = ('tensor', 'sorted', 'coo', 'csr', 'tensor', 'csc')


def resident() -> float:
    """The memory that the process holds, in MB, without what it has freed
    and the C library keeps for the next time."""
    gc.collect()
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * 4096 / 1e6


def in_form(name: str, edge_index: Tensor, num_nodes: int) -> Tensor:
    if name == 'tensor':
        return edge_index
    if name == 'sorted':
        size = (num_nodes, num_nodes)
        return EdgeIndex(edge_index, sparse_size=size).sort_by('col').values
    adj = torch.sparse_coo_tensor(edge_index.flip(0),
                                  torch.ones(edge_index.size(1)),
                                  (num_nodes, num_nodes)).coalesce()
    return adj if name == 'coo' else adj.to_sparse(
        layout=getattr(torch, f'sparse_{name}'))


def steps(period: int) -> Iterator[None]:
    conv = SparseGATConv(16, 8, heads=4, dropout=0.2, add_self_loops=False)
    criterion = RankingLoss(0.9)
    optimizer = torch.optim.Adam(conv.parameters(), lr=1e-3)
    for k in itertools.count():
        torch.manual_seed(k % period)
        form = FORMS[k % period % len(FORMS)]
        num_nodes, num_edges = (int(torch.randint(low, high, ())) for
                                low, high in ((10, 2000), (0, 20_000)))
        edge_index = torch.randint(num_nodes, (2, num_edges))
        h = conv(torch.randn(num_nodes, 16),
                 in_form(form, edge_index, num_nodes))
        src, dst = edge_index
        loss = criterion((h[src] * h[dst]).sum(-1),
                         torch.randint(5, (num_edges, )), edge_index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not loss.isfinite():
            sys.exit(f'the loss became {loss.item()}')
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--steps', type=int, default=2000)
    args = parser.parse_args()
    warnings.simplefilter('ignore')  # PyTorch's own, about sparse matrices
    block = max(1, args.steps // 10)
    run = steps(block)
    memory: List[float] = []
    seconds: List[float] = []
    for k in range(10):
        start = time.process_time()
        for _ in range(block):
            next(run)
        seconds.append((time.process_time() - start) / block)
        memory.append(resident())
        print(f'{(k + 1) * block:6d} steps: {memory[-1]:8.1f} MB, '
              f'{1e3 * seconds[-1]:6.2f} ms a step', flush=True)
    # The first tenth warms up: pools of threads and of memory, caches.
    growth = max(memory[-3:]) / memory[1] - 1
    slower = statistics.median(seconds[-3:]) / statistics.median(
        seconds[1:4]) - 1
    print(f'memory {growth:+.2%}, time {slower:+.1%}')
    if growth > 0.01:
        sys.exit('memory grows')
    if slower > 0.2:  # what other processes do to the caches
        sys.exit('steps become slower')


if __name__ == '__main__':
    main()
