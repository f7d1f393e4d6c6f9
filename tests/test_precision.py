"""How many digits are right, and that none is lost where numbers are extreme.

The bounds are relative to the largest number in the result, in units of
EPS = 2^-24, half the distance of two float32 numbers around 1: what a
rounding may cost.
"""
import math
import os

import pytest
import torch

from pyg_rankspmm import RankingLoss, sddmm, soft_rank, spmm
from pyg_rankspmm.graph import arrange, from_edge_index, group
from pyg_rankspmm.metrics.functional import kendall_tau, rank_biased_overlap
from pyg_rankspmm.ops.attention import attention, attention_weights
from pyg_rankspmm.ops.soft_rank import overlap, temperatures

EPS = 2.0**-24
LONG = 1_000_000
SEGMENT = 1024  # entries of which the kernels sum up one after the other


def error(actual, expected):
    """The largest error, relative to the largest number."""
    expected = expected.double()
    scale = expected.abs().max().clamp(min=1e-300)
    return ((actual.double() - expected).abs().max() / scale).item()


def leaves(*values):
    return [value.detach().clone().requires_grad_() for value in values]


def gradients(function, args, grad):
    """Result and gradients in float32 and, of the same numbers, in
    float64."""
    out = []
    for dtype in (torch.float32, torch.float64):
        mine = leaves(*(a.to(dtype) for a in args))
        y = function(*mine)
        out.append([y.detach(), *torch.autograd.grad(y, mine, grad.to(dtype))])
    return out


# One group, or one node, with a million edges ################################


@pytest.fixture(scope='module')
def star():
    """All edges come from node 0 and from others, and go to node 0."""
    torch.manual_seed(0)
    return torch.stack([torch.arange(LONG) % 1000, torch.zeros(LONG).long()])


def test_products_of_a_long_row(star):
    value, x = torch.randn(LONG), torch.randn(1000, 8)
    narrow, wide = gradients(lambda *a: spmm(star, *a, (1000, 1)), (value, x),
                             torch.randn(1, 8))
    # A sum of n random terms grows as sqrt(n), each step of it rounds, and a
    # segment is summed in float32 before the segments are: the errors add up
    # as a random walk of SEGMENT + LONG / SEGMENT steps, and less.
    assert error(narrow[0], wide[0]) < 4 * math.sqrt(SEGMENT) * EPS
    # One product of 8 terms, and a sum of 1000 edges.
    assert error(narrow[1], wide[1]) < 8 * EPS
    assert error(narrow[2], wide[2]) < 4 * math.sqrt(SEGMENT) * EPS


def test_sums_that_grow(star):
    # Terms of one sign: each step rounds a sum that is far larger than they.
    narrow, wide = gradients(
        lambda *a: spmm(star, *a, (1000, 1)),
        (torch.rand(LONG), torch.rand(1000, 8)), torch.rand(1, 8))
    bound = (SEGMENT + LONG / SEGMENT) * EPS
    for a, b in zip(narrow, wide):
        assert error(a, b) < bound
    # (One float32 after the other would be wrong by up to n.)
    assert bound < 0.01 * LONG * EPS


def test_attention_of_a_long_row(star):
    graph = from_edge_index(star, (1000, 1))
    args = (torch.randn(1000, 2, 8), 3 * torch.randn(1000, 2),
            torch.randn(1, 2), torch.randn(LONG, 2))
    narrow, wide = gradients(lambda *a: attention(graph, *a), args,
                             torch.randn(1, 2, 8))
    # The exponential of a logit u is right within |u| EPS, since u is rounded
    # itself, and |u| < 30 here; then come sums of positive terms.
    bound = (30 + math.sqrt(SEGMENT) * 4) * EPS
    # a_dst moves all logits alike: but for the slope of LeakyReLU its gradient
    # is the rest of a sum that cancels. What is added up counts.
    terms = wide[4].abs().sum(0)
    assert ((narrow[3] - wide[3]).abs() < bound * terms).all()
    for i in (0, 1, 2, 4):
        assert error(narrow[i], wide[i]) < bound


def test_ranks_of_a_long_group():
    index = torch.zeros(LONG).long()
    score = torch.randn(LONG)
    for temperature in (1e-3, 0.3, 30.0):
        narrow, wide = gradients(
            lambda s, t=temperature: soft_rank(s, index, t), (score, ),
            torch.randn(LONG))
        # The recurrences run in float64 on factors exp(-d / t) that are
        # float32, each wrong by EPS / 2 at most. As many of them are
        # multiplied as entries lie within the temperature. If all erred to
        # the same side, EPS / 2 times that many were the error; they do not,
        # but float32 scores have few differences d, and their errors repeat.
        reach = min(LONG, temperature * LONG)
        bound = (4 + reach / 32) * EPS
        assert error(narrow[0], wide[0]) < bound
        assert error(narrow[1], wide[1]) < bound


def test_loss_of_a_long_group():
    torch.manual_seed(0)
    index = torch.zeros(LONG).long()
    target = torch.randn(LONG)
    pred = target + torch.randn(LONG)
    for p in (0.9999, 1.0):
        narrow, wide = gradients(
            lambda s, p=p: RankingLoss(p, 0.1)(s, target, index), (pred, ),
            torch.ones(()))
        # A rank of up to n is a float32: half of a rank is lost at 2^24, here
        # 1/32 of one. The overlap is a mean over all ranks for p = 1; for
        # small p the first ranks, which are exact within n EPS / 10, decide.
        assert abs(narrow[0] - wide[0]) < 1e-4
        total = wide[1].abs().sum()
        assert (narrow[1].double() - wide[1]).abs().sum() < 0.02 * total


def test_metrics_of_a_long_group_are_float64():
    index = torch.zeros(50_000).long()
    a, b = torch.randn(2, 50_000).double()
    for metric in (rank_biased_overlap, kendall_tau):
        assert abs(metric(a, a, index) - 1) < 1e-12
        # The order is all that counts: float32 keeps almost all of it.
        wide, narrow = metric(a, b, index), metric(a.float(), b.float(), index)
        assert abs(wide - narrow) < 1e-5
    assert kendall_tau(a, -a, index) == -1


# One source with ten million edges ###########################################


@pytest.mark.skipif('TEST_LARGE' not in os.environ,
                    reason="takes 3 GB; runs in 'make fuzz'")
def test_a_source_with_ten_million_edges():
    n = 10_000_000
    torch.manual_seed(0)
    pred = torch.randn(n, requires_grad=True)
    target = (pred.detach() + torch.randn(n)).mul(2).round()
    index = torch.zeros(n).long()
    loss = RankingLoss()(pred, target, index)
    loss.backward()
    assert 0 < loss < 1 and pred.grad.isfinite().all()
    # Shifting all scores changes nothing: gradients sum to 0.
    assert pred.grad.double().sum().abs() < 1e-3 * pred.grad.abs().sum()
    rank = soft_rank(pred, index, 1e-9).detach()
    total = n * (n + 1) / 2
    # Ranks above 2^24 would not be whole numbers any more.
    assert abs(rank.double().sum().item() - total) <= 1e-7 * total

    edge_index = torch.stack([index, torch.arange(n) % 1000])
    graph = from_edge_index(edge_index, (1, 1000))
    x, a_edge = torch.randn(1, 1, 4), torch.randn(n, 1).requires_grad_()
    x.requires_grad_()
    out = attention(graph, x, torch.zeros(1, 1), a_edge=a_edge)
    torch.testing.assert_close(out, x.expand_as(out), rtol=1e-5, atol=1e-5)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1000.0), rtol=1e-4,
                               atol=0)


# Extreme numbers #############################################################


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('temperature', [1e-8, 1e-4, 1.0, 1e4, 1e8])
@pytest.mark.parametrize('scale', [1e-30, 1e-8, 1.0, 1e8, 1e30])
def test_no_nan_that_was_not_there(dtype, temperature, scale):
    torch.manual_seed(0)
    index = torch.randint(9, (500, ))
    target = torch.randint(5, (500, )).double() * scale
    for relative in (True, False):
        pred = (scale * torch.randn(500)).to(dtype).requires_grad_()
        for p in (1e-6, 0.5, 1.0):
            loss = RankingLoss(p, temperature, relative)(pred, target, index)
            grad, = torch.autograd.grad(loss, pred)
            assert 0 <= loss <= 1 and grad.isfinite().all()
        ptr, place = group(index, 9)
        tau = temperatures(arrange(pred, place), ptr, temperature, relative)
        rank = soft_rank(pred, index, tau)
        n = ptr.diff()[index]
        assert ((rank >= 1) & (rank <= n)).all()
        rbo = overlap(arrange(rank, place), arrange(target, place), ptr, 0.9)
        assert ((rbo >= 0) & (rbo <= 1)).all()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_scores_that_differ_by_more_than_any_number(dtype):
    # Their difference is infinite: they are as far apart as can be.
    big = torch.finfo(dtype).max
    score = torch.tensor([big, -big, 0.0, big], dtype=dtype,
                         requires_grad=True)
    rank = soft_rank(score, torch.zeros(4).long(), 1.0)
    assert rank.tolist() == [1.5, 4.0, 3.0, 1.5]
    rank.sum().backward()
    assert not score.grad.any()
    target = torch.tensor([3.0, 1.0, 2.0, 3.0])
    for relative in (True, False):
        loss = RankingLoss(relative=relative)(score, target,
                                              torch.zeros(4).long())
        assert loss.isfinite()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('heads', [1, 3, 8])
def test_logits_of_ten_thousand(dtype, heads):
    # exp(1e4) is infinite: only differences of logits may be exponents. The
    # row ends in one weight of 1 where one logit leads, else in equal ones.
    edge_index = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 2]])
    graph = from_edge_index(edge_index, (3, 4))
    x = torch.randn(3, heads, 2, dtype=dtype, requires_grad=True)
    a_edge = torch.tensor([1e4, -1e4, 0, -1e4, -1e4, -math.inf], dtype=dtype)
    a_edge = a_edge.view(-1, 1).repeat(1, heads).requires_grad_()
    zero = torch.zeros(3, heads, dtype=dtype)
    bias = torch.ones(heads, 2, dtype=dtype)
    out = attention(graph, x, zero, a_edge=a_edge, bias=bias)
    torch.testing.assert_close(out[0], x[0] + bias)
    torch.testing.assert_close(out[1], (x[0] + x[1]) / 2 + bias)
    assert torch.equal(out[2], bias)  # all -inf
    assert torch.equal(out[3], bias)  # no edge
    # Weights are exp(s - lse), as in the backward pass, and lse near -2000 (a
    # fifth of the logit) is rounded.
    alpha = attention_weights(graph, zero, a_edge=a_edge)
    wanted = torch.tensor([1, 0, 0, 0.5, 0.5, 0], dtype=dtype)
    eps = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(alpha[:, 0], wanted, rtol=2000 * eps, atol=0)
    out.square().sum().backward()
    assert x.grad.isfinite().all() and a_edge.grad.isfinite().all()
    assert not x.grad[2].any() and not a_edge.grad[5].any()


def test_products_of_huge_and_tiny_numbers():
    edge_index = torch.tensor([[0, 1], [0, 0]])
    for value, x, wanted in ((1e30, 1e-30, 2.0), (1e-30, 1e30, 2.0),
                             (1e-30, 1e-30, 0.0)):
        v, y = leaves(torch.full((2, ), value), torch.full((2, 3), x))
        out = spmm(edge_index, v, y)
        torch.testing.assert_close(out[0], torch.full((3, ), wanted))
        dot = sddmm(edge_index, y, y)
        assert not dot.isnan().any()
        out.sum().backward()
        assert v.grad.isfinite().all() and y.grad.isfinite().all()
