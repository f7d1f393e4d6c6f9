"""The attention operator against an attention written down node by node."""
import math

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from pyg_rankspmm.graph import csr, from_edge_index
from pyg_rankspmm.ops.attention import (
    _attention_grad_reference,
    attention,
    attention_weights,
    draw_seed,
)

NUM_SRC, NUM_DST, NUM_EDGES, HEADS, CHANNELS = 6, 4, 15, 2, 3


def make_graph(num_loops=0):
    torch.manual_seed(1)
    edge_index = torch.stack([torch.randint(NUM_SRC, (NUM_EDGES, )),
                              torch.randint(NUM_DST - 1, (NUM_EDGES, ))])
    return edge_index, from_edge_index(edge_index, (NUM_SRC, NUM_DST),
                                       num_loops)


def randn(*size):
    return torch.randn(size, dtype=torch.float64, requires_grad=True)


def make_inputs(num_loops=0):
    return (randn(NUM_SRC, HEADS, CHANNELS), randn(NUM_SRC, HEADS),
            randn(NUM_DST, HEADS), randn(NUM_EDGES + num_loops, HEADS),
            randn(HEADS, CHANNELS))


def by_hand(edges, x, a_src, a_dst=None, a_edge=None, bias=None,
            negative_slope=0.2, mask=None):
    """'edges' is a list of (source, target, position)."""
    out = []
    for i in range(NUM_DST):
        mine = [(j, e) for j, k, e in edges if k == i]
        for h in range(HEADS):
            total = x.new_zeros(CHANNELS) if bias is None else bias[h]
            if mine:
                logits = []
                for j, e in mine:
                    u = a_src[j, h]
                    u = u if a_dst is None else u + a_dst[i, h]
                    u = u if a_edge is None else u + a_edge[e, h]
                    logits.append(torch.where(u > 0, u, negative_slope * u))
                alpha = torch.stack(logits).softmax(0)
                for a, (j, e) in zip(alpha, mine):
                    m = 1.0 if mask is None else mask[e, h]
                    total = total + m * a * x[j, h]
            out.append(total)
    return torch.stack(out).view(NUM_DST, HEADS, CHANNELS)


def as_list(edge_index, num_loops=0):
    edges = [(i, j, e) for e, (i, j) in enumerate(edge_index.t().tolist())
             if num_loops == 0 or i != j]
    return edges + [(i, i, NUM_EDGES + i) for i in range(num_loops)]


@pytest.mark.parametrize('num_loops', [0, 3])
@pytest.mark.parametrize('with_dst', [True, False])
@pytest.mark.parametrize('with_edge', [True, False])
@pytest.mark.parametrize('with_bias', [True, False])
@pytest.mark.parametrize('negative_slope', [0.2, 0.0, 1.0])
def test_attention(num_loops, with_dst, with_edge, with_bias, negative_slope):
    edge_index, graph = make_graph(num_loops)
    x, a_src, a_dst, a_edge, bias = make_inputs(num_loops)
    args = (x, a_src, a_dst if with_dst else None,
            a_edge if with_edge else None, bias if with_bias else None,
            negative_slope)
    leaves = [a for a in args[:5] if a is not None]
    out = attention(graph, *args)
    expected = by_hand(as_list(edge_index, num_loops), *args)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, leaves, grad),
                               torch.autograd.grad(expected, leaves, grad))


@pytest.mark.parametrize('dropout', [0.0, 0.4])
@pytest.mark.parametrize('num_loops', [0, 3])
def test_gradients(dropout, num_loops):
    _, graph = make_graph(num_loops)
    inputs, seed = make_inputs(num_loops), torch.tensor([123456789012345])

    def run(*args):
        return attention(graph, *args, dropout=dropout, seed=seed)

    assert gradcheck(run, inputs)
    assert gradgradcheck(run, inputs)
    assert gradcheck(lambda *a: run(*a, None, None, None), inputs[:2])
    assert gradgradcheck(lambda *a: run(*a, None, None, None), inputs[:2])


def test_third_derivative():
    # The logits depend on the features, as in a layer.
    _, graph = make_graph()
    x, a_src, *rest = (a.detach() for a in make_inputs())
    t = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def loss(t):
        y = x * t + t**2
        return attention(graph, y, a_src + y.sum(-1), *rest).pow(2).sum()

    def derivative(f):
        return lambda t: torch.autograd.grad(f(t), t, create_graph=True)[0]

    assert gradcheck(derivative(derivative(loss)), (t, ))


@pytest.mark.parametrize('num_loops', [0, 3])
@pytest.mark.parametrize('dropout', [0.0, 0.4])
def test_weights(num_loops, dropout):
    edge_index, graph = make_graph(num_loops)
    x, a_src, a_dst, a_edge, bias = make_inputs(num_loops)
    seed = draw_seed()
    alpha = attention_weights(graph, a_src, a_dst, a_edge, dropout=dropout,
                              seed=seed)
    assert alpha.shape == (NUM_EDGES + num_loops, HEADS)
    full = attention_weights(graph, a_src, a_dst, a_edge)
    mask = (alpha / full).nan_to_num()
    out = attention(graph, x, a_src, a_dst, a_edge, bias, dropout=dropout,
                    seed=seed)
    expected = by_hand(as_list(edge_index, num_loops), x, a_src, a_dst,
                       a_edge, bias, mask=mask)
    torch.testing.assert_close(out, expected)
    if dropout == 0.0:
        sums = torch.zeros(NUM_DST, HEADS).double()
        loops = torch.arange(num_loops)
        sums.index_add_(0, torch.cat([edge_index[1], loops]), alpha.detach())
        assert ((sums - 1).abs() < 1e-12)[:NUM_DST - 1].all()


@pytest.mark.parametrize('num_loops', [0, 3])
@pytest.mark.parametrize('dropout', [0.0, 0.4])
@pytest.mark.parametrize('optional', [True, False])
def test_opcheck(num_loops, dropout, optional):
    _, graph = make_graph(num_loops)
    inputs, seed = make_inputs(num_loops), draw_seed()
    if not optional:
        inputs = (*inputs[:2], None, None, None)
    options = (seed, 0.2, dropout)
    ops = torch.ops.pyg_rankspmm
    for operands in (graph.operands(),
                     (*graph.by_dst, *graph.transpose().by_dst)):
        torch.library.opcheck(ops.attention.default,
                              (*inputs, *operands, *options))
        out, lse = ops.attention(*inputs, *operands, *options)
        torch.library.opcheck(
            ops.attention_backward.default,
            (torch.randn_like(out).requires_grad_(), *inputs, out.detach(),
             lse, *operands, *options))


def test_rows_of_minus_infinity():
    edge_index = torch.tensor([[0, 1, 2, 0], [0, 0, 1, 1]])
    graph = from_edge_index(edge_index, (3, 3))
    x = randn(3, 1, 2)
    a_edge = torch.tensor([[-math.inf], [-math.inf], [-math.inf], [0.0]],
                          dtype=torch.float64, requires_grad=True)
    a_src, bias = randn(3, 1), randn(1, 2)
    out = attention(graph, x, a_src, a_edge=a_edge, bias=bias)
    torch.testing.assert_close(out[0], bias)  # all logits are -inf
    torch.testing.assert_close(out[1], x[0] + bias)
    torch.testing.assert_close(out[2], bias)  # no edge
    out.pow(2).sum().backward()
    for grad in (x.grad, a_src.grad, bias.grad):
        assert grad.isfinite().all()
    assert not x.grad[1].any()


@pytest.mark.parametrize('scale', [1e4, -1e4])
def test_large_logits(scale):
    _, graph = make_graph()
    x, a_src, *rest = make_inputs()
    out = attention(graph, x, a_src * scale, *rest)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all() and a_src.grad.isfinite().all()


def test_nan_stays_in_its_row():
    edge_index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    graph = from_edge_index(edge_index, (3, 2))
    a_src = torch.tensor([[math.nan], [0.0], [0.0]])
    out = attention(graph, torch.ones(3, 1, 1), a_src)
    assert out.isnan().flatten().tolist() == [True, False]


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    _, graph = make_graph()
    inputs = [a.detach().to(dtype).requires_grad_() for a in make_inputs()]
    out = attention(graph, *inputs)
    assert out.dtype == dtype
    exact = [a.detach().float().requires_grad_() for a in inputs]
    expected = attention(graph, *exact)
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)
    out.float().pow(2).sum().backward()
    expected.pow(2).sum().backward()
    for a, b in zip(inputs, exact):
        assert a.grad.dtype == dtype
        torch.testing.assert_close(a.grad.float(), b.grad, rtol=0.1, atol=0.1)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_sum_in_float32(dtype):
    # 1000 equal weights: their sum in half precision would stop at 256.
    graph = from_edge_index(torch.stack([torch.arange(1000),
                                         torch.zeros(1000).long()]), (1000, 1))
    alpha = attention_weights(graph, torch.zeros(1000, 1, dtype=dtype))
    assert alpha.dtype == dtype
    torch.testing.assert_close(alpha.float(), torch.full((1000, 1), 1e-3),
                               rtol=0.01, atol=0)


def test_forward_mode_is_refused():
    _, graph = make_graph()
    x, a_src, *_ = make_inputs()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
        with pytest.raises(NotImplementedError, match='forward-mode'):
            attention(graph, dual, a_src)


def test_seeds():
    seeds = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        seeds.append(int(draw_seed()))
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize('run', [
    torch.ops.pyg_rankspmm.attention_backward,
    _attention_grad_reference,
])
@pytest.mark.parametrize('at', [0, 1])
def test_dropped_entries_hear_no_nan(run, at):
    # The old self-loops wait behind the last row and must read none of it.
    edge = torch.tensor([0, 1, 0])
    rest = *csr(edge, edge, 2, 2, 2), *(None, ) * 4, 0.2, 0.0
    x, a = torch.randn(2, 1, 4), torch.randn(2, 1)
    out, lse = torch.ops.pyg_rankspmm.attention(x, a, a, None, None, *rest)
    grad = torch.ones_like(out)
    grad[at] = torch.nan
    grad_x = run(grad, x, a, a, None, None, out, lse, *rest)[0]
    assert grad_x.isnan().any(-1).flatten().tolist() == [at == 0, at == 1]
