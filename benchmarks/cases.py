"""What is measured. A case is a function that returns its steps by name; the
first step is the one that the others are compared with. Peers that are not
installed are left out."""
from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Optional
from unittest import mock

import torch
from torch import Tensor

from benchmarks.timing import Step, power_law_graph
from pyg_rankspmm import RankingLoss, SparseGATConv, graph, spmm
from pyg_rankspmm.metrics.functional import rank_biased_overlap

Steps = Dict[str, Step]
CASES: Dict[str, Callable[[], Steps]] = {}

NUM_NODES, NUM_EDGES = 170_000, 2_330_000


def case(name: str, *args: int) -> Callable:
    def register(function: Callable[..., Steps]) -> Callable[..., Steps]:
        CASES[name] = functools.partial(function, *args)
        return function

    return register


# Layers ######################################################################


def layer_steps(layers: Dict[str, torch.nn.Module], x: Tensor,
                edge_index: Tensor) -> Steps:
    def step(layer: torch.nn.Module) -> Step:
        def run() -> None:
            layer.zero_grad(set_to_none=True)
            x.grad = None
            out = layer(x, edge_index)
            out.backward(grad.view_as(out))

        return run

    with torch.no_grad():
        layer = layers['ours']
        grad = torch.randn_like(layer(x, edge_index))
    return {name: step(layer) for name, layer in layers.items()}


def gat_layers(in_channels: int, channels: int,
               heads: int) -> Dict[str, torch.nn.Module]:
    from torch_geometric.nn import GATConv
    layers: Dict[str, torch.nn.Module] = {
        'ours': SparseGATConv(in_channels, channels, heads=heads),
        'PyG GATConv': GATConv(in_channels, channels, heads=heads),
    }
    dgl = import_dgl()
    if dgl is not None:
        layers['DGL GATConv'] = DGLLayer(dgl, in_channels, channels, heads)
    return layers


def import_dgl() -> Optional[ModuleType]:
    # The last DGL on PyPI imports its GraphBolt, which needs a library for
    # each version of PyTorch, and ends there; nothing here needs it.
    with mock.patch.dict(sys.modules, {'dgl.graphbolt': mock.MagicMock()}):
        try:
            import dgl
            import dgl.nn  # noqa: F401
        except (ImportError, OSError):
            return None
    return dgl


class DGLLayer(torch.nn.Module):
    """DGL's layer on what PyG's layers get."""
    def __init__(self, dgl: Any, in_channels: int, channels: int,
                 heads: int) -> None:
        super().__init__()
        self.dgl = dgl
        self.conv = dgl.nn.GATConv(in_channels, channels, heads)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        loop = torch.arange(x.size(0))
        src, dst = edge_index[:, edge_index[0] != edge_index[1]]
        ends = torch.cat([src, loop]), torch.cat([dst, loop])
        graph = self.dgl.graph(ends, num_nodes=x.size(0))
        return self.conv(graph, x)


@case('layer 128 -> 8x32', 8, 32)
@case('layer 128 -> 4x32', 4, 32)
@case('layer 128 -> 8x8', 8, 8)
@case('layer 128 -> 1x128', 1, 128)
def gat_layer(heads: int, channels: int) -> Steps:
    """A hidden layer: projection, CSR of a raw edge_index, attention,
    gradients of the parameters and of x."""
    x = torch.randn(NUM_NODES, 128, requires_grad=True)
    return layer_steps(gat_layers(128, channels, heads), x,
                       power_law_graph(NUM_NODES, NUM_EDGES))


@case('layer on Cora 1433 -> 8x8')
def cora_layer() -> Steps:
    x = (torch.rand(2708, 1433) < 0.0127).float()
    steps = layer_steps(gat_layers(1433, 8, 8), x,
                        power_law_graph(2708, 10_556))
    weight = torch.randn(64, 1433, requires_grad=True)
    grad = torch.randn(2708, 64)
    # What no layer does without: nobody can be faster than this.
    steps['the projection alone'] = lambda: (x @ weight.t()).backward(grad)
    return steps


@case('layer on a tiny graph 16 -> 4x8')
def tiny_layer() -> Steps:
    """Nothing to compute: the overhead of a call."""
    x = torch.randn(10, 16, requires_grad=True)
    return layer_steps(gat_layers(16, 8, 4), x, torch.randint(10, (2, 20)))


# Kernels #####################################################################


@case('attention 8x32', 8, 32)
@case('attention 4x32', 4, 32)
@case('attention 3x33', 3, 33)
@case('attention 8x8', 8, 8)
@case('attention 1x128', 1, 128)
def attention_kernel(heads: int, channels: int) -> Steps:
    """Against reading (and writing) the rows that have to be read: 1.0 is the
    speed of index_select into memory that is there."""
    edge_index = power_law_graph(NUM_NODES, NUM_EDGES)
    n = NUM_NODES
    matrix = graph.from_edge_index(edge_index, (n, n), n).by_dst
    operands = (*matrix, None, None, None, None, 0.2, 0.0)
    x, grad = torch.randn(2, n, heads, channels).unbind(0)
    a_src, a_dst = torch.randn(2, n, heads).unbind(0)
    bias = torch.randn(heads, channels)
    col = matrix.col[:int(matrix.rowptr[-1])].long()
    rows, flat = torch.empty(len(col), heads * channels), x.flatten(1)
    ops = torch.ops.pyg_rankspmm
    args = (x, a_src, a_dst, None, bias)
    out, lse = ops.attention(*args, *operands)
    return {
        'index_select': lambda: torch.index_select(flat, 0, col, out=rows),
        'forward': lambda: ops.attention(*args, *operands),
        'backward': lambda: ops.attention_backward(grad, *args, out, lse,
                                                   *operands),
    }


@case('CSR and its transpose')
def structures() -> Steps:
    edge_index = power_law_graph(NUM_NODES, NUM_EDGES)
    n = NUM_NODES
    matrix = graph.from_edge_index(edge_index, (n, n), n).by_dst
    return {
        'sort': lambda: edge_index[1].sort(stable=True),
        'csr': lambda: graph.from_edge_index(edge_index, (n, n), n),
        'transpose': lambda: graph.transpose(matrix, n),
    }


@case('spmm, 128 columns')
def products() -> Steps:
    """Forward and backward, with gradients for values and x."""
    edge_index = power_law_graph(NUM_NODES, NUM_EDGES)
    value = torch.rand(edge_index.size(1), requires_grad=True)
    x = torch.randn(NUM_NODES, 128, requires_grad=True)
    grad = torch.randn(NUM_NODES, 128)

    def step(product: Callable[[], Tensor]) -> Step:
        def run() -> None:
            value.grad = x.grad = None
            product().backward(grad)

        return run

    src, dst = edge_index
    n = NUM_NODES
    steps = {
        'ours': step(lambda: spmm(edge_index, value, x)),
        # Its backward pass makes a dense N x N matrix.
        'torch.sparse': step(lambda: torch.sparse_coo_tensor(
            edge_index.flip(0), value, (n, n)) @ x),
    }
    try:
        import torch_sparse
    except ImportError:
        return steps
    flipped = edge_index.flip(0)
    steps['torch_sparse.spmm'] = step(
        lambda: torch_sparse.spmm(flipped, value, n, n, x))
    steps['torch_sparse.matmul'] = step(
        lambda: torch_sparse.SparseTensor(
            row=dst, col=src, value=value, sparse_sizes=(n, n)) @ x)
    return steps


# Rankings ####################################################################


def ranking(num_edges: int, num_groups: int = 10_000) -> tuple:
    g = torch.Generator().manual_seed(0)
    u = torch.rand(num_edges, generator=g)
    index = (num_groups * u**2.2).long().clamp(max=num_groups - 1)
    pred = torch.randn(num_edges, generator=g).requires_grad_()
    target = torch.randint(10, (num_edges, ), generator=g) / 2
    return pred, target, index


def ranking_step(num_edges: int) -> Step:
    pred, target, index = ranking(num_edges)
    criterion = RankingLoss()
    edge_index = torch.stack([index, index])

    def run() -> None:
        pred.grad = None
        criterion(pred, target, edge_index).backward()

    return run


@case('RankingLoss, 1 M edges')
def ranking_loss() -> Steps:
    steps = {'ours': ranking_step(1_000_000), **sort_step()}
    try:
        import torchsort
    except ImportError:
        return steps
    pred, target, index = ranking(1_000_000)

    def run() -> None:
        """Not even RBO: the squared difference of the ranks."""
        pred.grad = None
        order = index.argsort(stable=True)
        size = index.bincount().tolist()
        loss = pred.new_zeros(())
        for x, y in zip(pred[order].split(size), target[order].split(size)):
            if x.numel() > 0:
                rank = torchsort.soft_rank(-x.unsqueeze(0)).squeeze(0)
                true = (-y).argsort().argsort() + 1
                loss = loss + (rank - true).square().sum()
        loss.backward()

    steps['torchsort, a loop over the groups'] = run
    return steps


@case('RankingLoss, 10 M edges')
def ranking_loss_scaling() -> Steps:
    return {'1 M edges': ranking_step(1_000_000),
            '10 M edges': ranking_step(10_000_000)}


@case('rank_biased_overlap, 1 M edges')
def overlap() -> Steps:
    pred, target, index = ranking(1_000_000)
    pred = pred.detach()
    steps = {
        'ours': lambda: rank_biased_overlap(pred, target, index, p=0.9),
        **sort_step(),
    }
    try:
        import rbo
    except ImportError:
        return steps

    def run() -> float:
        order = index.argsort(stable=True)
        total = 0.0
        for entries in order.split(index.bincount().tolist()):
            if len(entries) > 0:
                lists = (entries[scores[entries].argsort(descending=True)]
                         .tolist() for scores in (pred, target))
                total += len(entries) * rbo.RankingSimilarity(*lists).rbo(
                    p=0.9, ext=True)
        return total / len(order)

    steps['rbo, a loop over the groups'] = run
    return steps


def sort_step() -> Steps:
    numbers = torch.randn(1_000_000)
    return {'torch.sort of 1 M floats': lambda: torch.sort(numbers)}
