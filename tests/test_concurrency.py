"""The same numbers in any thread, process, mode and transformation."""
import contextlib
import io
import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv

from pyg_rankspmm import RankingLoss, SparseGATConv, soft_rank, spmm

NUM_NODES, NUM_EDGES = 400, 12_000  # enough for a second thread


class Model(torch.nn.Module):
    """Both halves of the package, in the order in which they are used."""
    def __init__(self, dropout=0.0, **kwargs):
        super().__init__()
        self.conv = SparseGATConv(6, 8, heads=4, dropout=dropout, edge_dim=2,
                                  **kwargs)
        self.loss = RankingLoss(0.9)

    def forward(self, x, edge_index, edge_attr, target):
        h = self.conv(x, edge_index, edge_attr)
        src, dst = edge_index
        return self.loss((h[src] * h[dst]).sum(-1), target, edge_index)


def make(num_nodes=NUM_NODES, num_edges=NUM_EDGES, seed=0):
    torch.manual_seed(seed)
    return (torch.randn(num_nodes, 6),
            torch.randint(num_nodes, (2, num_edges)),
            torch.randn(num_edges, 2), torch.randint(5, (num_edges, )).float())


def step(model, args, seed=7):
    """Loss and gradients, after the same seed."""
    torch.manual_seed(seed)
    loss = model(*args)
    return [loss.detach(),
            *torch.autograd.grad(loss, list(model.parameters()))]


def equal(a, b):
    return all(map(torch.equal, a, b))


def almost_equal(a, b):
    # PyTorch's own products may sum in another order, and the gradient of an
    # overlap has steps.
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)




# Threads #####################################################################


def test_eight_threads_at_once():
    model, batches = Model(), [make(seed=seed) for seed in range(8)]
    # (Without dropout, whose seeds come from a generator that all share.)
    expected = [step(model, args) for args in batches]

    def run(i):
        torch.set_num_threads(1 + i % 3)
        return [step(model, batches[(i + k) % 8]) for k in range(4)]

    with ThreadPoolExecutor(8) as pool:
        for i, results in enumerate(pool.map(run, range(8))):
            for k, result in enumerate(results):
                almost_equal(result, expected[(i + k) % 8])


def test_threads_share_a_sorted_graph():
    # The first to come fills the cache of the EdgeIndex.
    x, edge_index, *_ = make()
    expected = spmm(edge_index, None, x)
    for _ in range(5):
        shared = EdgeIndex(edge_index, sparse_size=(
            NUM_NODES, NUM_NODES)).sort_by('col').values
        with ThreadPoolExecutor(8) as pool:
            for out in pool.map(lambda _, graph=shared: spmm(graph, None, x),
                                range(8)):
                torch.testing.assert_close(out, expected)


@pytest.mark.parametrize('dropout', [0.0, 0.5])
def test_the_same_bits_on_any_number_of_threads(threads, dropout):
    # Of what is ours: the projection is PyTorch's, and is left out.
    x, edge_index, _, target = make()
    conv = SparseGATConv(6, 8, heads=4, dropout=dropout)
    h = torch.randn(NUM_NODES, 32)

    class Given(torch.nn.Module):
        def forward(self, x):
            return h

    conv.lin = Given()

    def run():
        torch.manual_seed(3)
        out = conv(x, edge_index)
        pred = out.detach()[edge_index[0], 0].requires_grad_()
        loss = RankingLoss(0.9)(pred, target, edge_index)
        return out, loss, *torch.autograd.grad(loss, pred)

    threads(1)
    expected = run()
    for n in (2, 3, 8):
        threads(n)
        assert equal(run(), expected)


def test_number_of_threads_changes_between_forward_and_backward(threads):
    model, args = Model(dropout=0.3), make()
    threads(2)
    expected = step(model, args)
    for first, second in itertools.permutations((1, 2, 5), 2):
        threads(first)
        torch.manual_seed(7)
        loss = model(*args)
        threads(second)
        almost_equal(torch.autograd.grad(loss, list(model.parameters())),
                     expected[1:])


# Processes ###################################################################


class Samples(Dataset):
    """Runs kernels in the worker, as a transform would."""
    def __len__(self):
        return 4

    def __getitem__(self, i):
        x, edge_index, *_ = make(seed=i)
        rank = soft_rank(x[edge_index[0], 0], edge_index[1], 0.5)
        return spmm(edge_index, None, x), rank


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork()')
def test_workers_of_a_loader(threads):
    threads(2)
    expected = [Samples()[i] for i in range(4)]  # OpenMP has run by now
    loader = DataLoader(Samples(), batch_size=None, num_workers=2,
                        multiprocessing_context='fork', timeout=120)
    for batch, wanted in zip(loader, expected):
        torch.testing.assert_close(list(batch), list(wanted))


# Modes #######################################################################


def test_deterministic_algorithms():
    model, args = Model(dropout=0.3), make()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = step(model, args), step(model, args)
        assert equal(first, second)
        # A second derivative too: it runs through plain PyTorch.
        x = args[0].clone().requires_grad_()
        grad, = torch.autograd.grad(model(x, *args[1:]), x, create_graph=True)
        grad.square().sum().backward()
        assert x.grad.isfinite().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_inference_mode():
    model, args = Model().eval(), make()
    expected = model(*args).detach()
    with torch.inference_mode():
        assert torch.equal(model(*args), expected)
    # What was made in there can be used for training outside.
    with torch.inference_mode():
        x = args[0] * 1
        graph = EdgeIndex(args[1] * 1, sparse_size=(NUM_NODES, NUM_NODES))
        graph = graph.sort_by('col').values
    conv = SparseGATConv(6, 2)
    with torch.inference_mode():
        conv(x, graph)  # fills the cache of the graph
    conv(x.clone(), graph.as_tensor().clone()).sum().backward()
    assert conv.att_src.grad.isfinite().all()


@pytest.mark.parametrize('add_self_loops', [True, False])
@pytest.mark.parametrize('return_attention_weights', [None, True])
def test_autocast(add_self_loops, return_attention_weights):
    # Features in bfloat16 meet logits that a softmax wants in float32: the
    # layer casts both above its operator, and returns what GATConv does.
    torch.manual_seed(0)
    options = dict(edge_dim=2, heads=4, add_self_loops=add_self_loops)
    conv, theirs = SparseGATConv(6, 8, **options), GATConv(6, 8, **options)
    theirs.load_state_dict(conv.state_dict())
    x, edge_index, edge_attr, target = make(60, 300)

    def run(layer, autocast):
        context = torch.autocast('cpu', torch.bfloat16) if autocast \
            else contextlib.nullcontext()
        layer.zero_grad()
        with context:
            out = layer(x, edge_index, edge_attr,
                        return_attention_weights=return_attention_weights)
            weights = None
            if return_attention_weights:
                out, (_, weights) = out
            src, dst = edge_index
            pred = (out[src] * out[dst]).sum(-1)
            loss = RankingLoss()(pred, target, edge_index)
        assert loss.dtype == torch.float32  # ranks need more than 8 bits
        loss.backward()
        return out, weights, [p.grad for p in layer.parameters()]

    out, weights, grads = run(conv, True)
    wanted, wanted_weights, _ = run(theirs, True)
    exact, exact_weights, exact_grads = run(conv, False)
    assert out.dtype == wanted.dtype
    torch.testing.assert_close(out.float(), exact, rtol=0.05, atol=0.05)
    if weights is not None:
        assert weights.dtype == wanted_weights.dtype
        torch.testing.assert_close(weights.float(), exact_weights, rtol=0.05,
                                   atol=0.05)
    for grad, parameter, wanted in zip(grads, conv.parameters(), exact_grads):
        assert grad.dtype == parameter.dtype
        error = (grad - wanted).norm() / wanted.norm().clamp(min=1e-3)
        assert error < 0.2  # 8 bits, and a loss that is steep where ranks are


@pytest.mark.parametrize('use_reentrant', [True, False])
def test_checkpointing_of_a_model(use_reentrant):
    model, args = Model(dropout=0.5), make(60, 300)
    args = (args[0].requires_grad_(), *args[1:])
    expected = step(model, args)
    torch.manual_seed(7)
    checkpoint(model, *args, use_reentrant=use_reentrant).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()],
                               expected[1:])


# Export ######################################################################


@pytest.mark.parametrize('add_self_loops', [True, False])
def test_export(add_self_loops):
    model = Model(add_self_loops=add_self_loops).eval()
    # Indices are 32 bits wide, or 64: a program is exported for one of them.
    most = 2**31 - 2**16
    nodes = torch.export.Dim('nodes', min=2, max=most)
    edges = torch.export.Dim('edges', min=2, max=most)
    shapes = ({0: nodes}, {1: edges}, {0: edges}, {0: edges})
    program = torch.export.export(model, make(60, 300),
                                  dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for size in ((60, 300), (400, 900), (7, 50), (900, 90)):
        args = make(*size, seed=1)
        torch.testing.assert_close(loaded(*args), model(*args))
