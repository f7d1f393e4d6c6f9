"""Soft ranks against the sum over all pairs."""
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from pyg_rankspmm import soft_rank
from pyg_rankspmm.graph import arrange, group
from pyg_rankspmm.ops.soft_rank import overlap


def all_pairs(score, index, temperature):
    """1 + sum over j of F((s_j - s_i) / tau), as it is written."""
    out = []
    for i in range(len(score)):
        rank = score.new_ones(())
        for j in range(len(score)):
            if i != j and index[i] == index[j]:
                z = (score[j] - score[i]) / temperature[index[i]]
                rank = rank + (0.5 * z.exp() if z < 0 else 1 - 0.5 *
                               (-z).exp())
        out.append(rank)
    return torch.stack(out) if out else score


def make(num=30, groups=6, seed=0):
    torch.manual_seed(seed)
    index = torch.randint(groups, (num, ))
    index[index == 3] = 2  # one group is empty
    score = torch.randn(num, dtype=torch.float64, requires_grad=True)
    temperature = torch.rand(groups, dtype=torch.float64) + 0.1
    return score, index, temperature.requires_grad_()


@pytest.mark.parametrize('scale', [1e-3, 1.0, 1e3])
def test_all_pairs(scale):
    score, index, temperature = make()
    temperature = temperature * scale
    torch.testing.assert_close(soft_rank(score, index, temperature),
                               all_pairs(score, index, temperature))


def test_gradients():
    score, index, temperature = make(15)

    def run(score, temperature):
        return soft_rank(score, index, temperature)

    assert gradcheck(run, (score, temperature))
    assert gradgradcheck(run, (score, temperature))
    assert gradgradcheck(lambda s: soft_rank(s, index, 0.5), (score, ))


scores = st.lists(st.tuples(
    st.integers(0, 3), st.floats(-10, 10).map(lambda x: round(x, 1))),
    min_size=1, max_size=25)


@given(scores, st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
@settings(deadline=None)
def test_properties(entries, temperature):
    index, score = zip(*entries)
    index = torch.tensor(index)
    score = torch.tensor(score, dtype=torch.float64, requires_grad=True)
    rank = soft_rank(score, index, temperature)
    weight = torch.linspace(-1, 1, len(entries)).double()
    grad, = torch.autograd.grad((weight * rank).sum(), score)
    for g in index.unique():
        mine = index == g
        n = int(mine.sum())
        # Ranks are shared out, and shifting all scores changes none.
        assert rank[mine].sum().item() == pytest.approx(n * (n + 1) / 2)
        bound = 1e-9 * (1 + grad[mine].abs().sum())
        assert grad[mine].sum().abs() <= bound
        assert (rank[mine] >= 1 - 1e-9).all()
        assert (rank[mine] <= n + 1e-9).all()
    # The order of the entries does not matter.
    perm = torch.randperm(len(entries))
    torch.testing.assert_close(
        soft_rank(score[perm], index[perm], temperature), rank[perm])
    # Nor do groups without entries.
    torch.testing.assert_close(soft_rank(score, 2 * index, temperature), rank)


def test_second_derivative_past_a_tie():
    # The pairs of entry 0 are smooth; that 1 and 2 tie must not matter to it.
    score = torch.tensor([2.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    index, temperature = torch.zeros(4).long(), torch.tensor([0.7]).double()

    def hessian(rank):
        return torch.autograd.functional.hessian(
            lambda s: rank(s, index, temperature)[0], score)

    torch.testing.assert_close(hessian(soft_rank), hessian(all_pairs))


def test_gradient_of_the_temperature_far_from_zero():
    torch.manual_seed(0)
    index = torch.zeros(50).long()
    score = (torch.randn(50) * 1024).round() / 1024  # exact after the shift
    weight, grads = torch.randn(50), []
    for shift in (0, 4096):
        temperature = torch.tensor([0.5], requires_grad=True)
        rank = soft_rank(score + shift, index, temperature)
        grads += torch.autograd.grad((weight * rank).sum(), temperature)
    torch.testing.assert_close(*grads)


def test_infinite_scores_have_ranks():
    score = torch.tensor([1.0, math.inf, -math.inf, math.inf])
    rank = soft_rank(score, torch.zeros(4).long(), 1.0)
    assert rank.tolist() == [3.0, 1.5, 4.0, 1.5]


def test_nan_alone_in_its_group():
    score = torch.tensor([math.nan, 1.0], requires_grad=True)
    rank = soft_rank(score, torch.tensor([0, 1]), 1.0)
    assert rank[0].isnan() and rank[1] == 1.0


def test_nan_gradient_stays_in_its_group():
    score, index, _ = make()
    rank = soft_rank(score, index, 0.3)
    grad = torch.randn_like(rank)
    wanted, = torch.autograd.grad(rank, score, grad, retain_graph=True)
    grad[0] = math.nan
    actual, = torch.autograd.grad(rank, score, grad)
    other = index != index[0]
    assert torch.equal(actual[other], wanted[other])
    assert actual[~other].isnan().all()


@pytest.mark.parametrize('bad', [math.nan, math.inf])
@pytest.mark.parametrize('which', ['score', 'first', 'second'])
def test_second_derivatives_that_are_not_finite_stay_in_their_group(
        bad, which):
    score, index, temperature = make()
    node = int(index[0])
    first, second = torch.randn(2, 30, dtype=torch.float64)

    def run(bad=None):
        args = dict(score=score, temperature=temperature, first=first,
                    second=second)
        args = {k: v.detach().clone() for k, v in args.items()}
        if bad is not None:
            args[which][0] = bad
        leaves = [args[k].requires_grad_()
                  for k in ('score', 'temperature', 'first')]
        rank = soft_rank(leaves[0], index, leaves[1])
        grad, = torch.autograd.grad(rank, leaves[0], leaves[2],
                                    create_graph=True)
        return torch.autograd.grad(grad, leaves, args['second'])

    other, others = index != node, torch.arange(6) != node
    for actual, wanted in zip(run(bad), run()):
        keep = other if actual.numel() == 30 else others
        assert torch.equal(actual[keep], wanted[keep])
        assert actual[~keep].isnan().all()


def test_equal_scores_share_their_ranks():
    rank = soft_rank(torch.tensor([1.0, 3.0, 1.0, 1.0]), torch.zeros(4).long(),
                     1e-3)
    assert rank.tolist() == [3.0, 1.0, 3.0, 3.0]


def test_small_temperature_gives_whole_ranks():
    score, index, _ = make()
    rank = soft_rank(score, index, 1e-9)
    for g in index.unique():
        mine = index == g
        expected = score[mine].argsort(descending=True).argsort() + 1
        torch.testing.assert_close(rank[mine], expected.double())


@pytest.mark.parametrize('temperature', [1e-8, 1.0, 1e8])
@pytest.mark.parametrize('scale', [1e-30, 1.0, 1e30])
def test_extreme_numbers(scale, temperature):
    score = (scale * torch.randn(1000)).requires_grad_()
    index = torch.randint(5, (1000, ))
    rank = soft_rank(score, index, temperature)
    rank.sum().backward()
    assert rank.isfinite().all() and score.grad.isfinite().all()


@pytest.mark.parametrize('temperature', [1e-46, 1e39])
@pytest.mark.parametrize('as_tensor', [True, False])
def test_temperatures_beyond_float32(temperature, as_tensor):
    score = torch.tensor([0.1, 0.2, 0.3, 0.3], requires_grad=True)
    if as_tensor:
        temperature = torch.tensor(temperature, dtype=torch.float64)
    rank = soft_rank(score, torch.zeros(4).long(), temperature)
    wanted = [4, 3, 1.5, 1.5] if temperature < 1 else [2.5] * 4
    torch.testing.assert_close(rank, torch.tensor(wanted))
    rank[0].backward()
    assert score.grad.isfinite().all()


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_group(bad):
    score, index, _ = make()
    expected = soft_rank(score, index, 0.3)
    score = score.detach().clone()
    score[0] = bad
    actual = soft_rank(score, index, 0.3)
    other = index != index[0]
    assert torch.equal(actual[other], expected[other])
    assert actual[~other].isnan().all() == math.isnan(bad)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16,
                                   torch.float32, torch.float64])
def test_dtypes(dtype):
    score, index, _ = make()
    score = score.detach().to(dtype).requires_grad_()
    rank = soft_rank(score, index, 0.3)
    wide = torch.promote_types(dtype, torch.float32)
    assert rank.dtype == wide  # half precision cannot count far
    expected = soft_rank(score.double(), index, 0.3).to(wide)
    torch.testing.assert_close(rank, expected)
    rank.sum().backward()
    assert score.grad.dtype == dtype


def test_no_entries():
    score = torch.randn(0, requires_grad=True)
    rank = soft_rank(score, torch.empty(0).long(), 1.0)
    assert rank.shape == (0, )
    rank.sum().backward()
    assert score.grad.shape == (0, )


def test_a_long_group():
    # 100,000 entries: all pairs would be 10^10.
    score = torch.linspace(0, 1, 100_000, dtype=torch.float64)
    rank = soft_rank(score, torch.zeros(100_000).long(), 1e-9)
    torch.testing.assert_close(rank, torch.arange(100_000, 0, -1).double())


def test_opcheck():
    score, index, temperature = make()
    ptr, _ = group(index, 6)
    ops = torch.ops.pyg_rankspmm
    torch.library.opcheck(ops.tie_spans.default, (score, ptr))
    for relative in (True, False):
        torch.library.opcheck(ops.temperatures.default,
                              (score.detach(), ptr, 0.3, relative))
    torch.library.opcheck(ops.soft_rank.default, (score, temperature, ptr))
    rank, order = ops.soft_rank(score, temperature, ptr)
    grad = torch.randn_like(score).requires_grad_()
    torch.library.opcheck(ops.soft_rank_backward.default,
                          (grad, score, temperature, ptr, order))
    for p in (0.9, 1.0):
        target = torch.randint(4, score.shape).double()
        torch.library.opcheck(
            ops.rbo.default,
            (rank.detach().requires_grad_(), target, ptr, p))


@pytest.mark.parametrize('p', [0.5, 0.9, 1.0])
@pytest.mark.parametrize('ties', [True, False])
def test_overlap_gradients(p, ties):
    score, index, temperature = make(20)
    ptr, place = group(index, 6)
    target = torch.randint(4, (20, )) if ties else torch.randn(20)
    target = arrange(target, place)

    def run(score, temperature):
        rank = arrange(soft_rank(score, index, temperature), place)
        return overlap(rank, target, ptr, p)

    assert gradcheck(run, (score, temperature))
    assert gradgradcheck(run, (score, temperature))


INDEX = torch.tensor([0, 0, 1])


@pytest.mark.parametrize('score,index,temperature,error,match', [
    ([1.0], INDEX, 1.0, TypeError, "'score'"),
    (torch.ones(3).long(), INDEX, 1.0, TypeError, "'score'"),
    (torch.ones(3, 2), INDEX, 1.0, ValueError, "'score'"),
    (torch.ones(4), INDEX, 1.0, ValueError, "'index'.*4 entries"),
    (torch.ones(3), INDEX.float(), 1.0, TypeError, "'index'"),
    (torch.ones(3), INDEX.view(3, 1), 1.0, ValueError, "'index'"),
    (torch.ones(3), INDEX - 1, 1.0, ValueError, "'index'.*got -1"),
    (torch.ones(3), INDEX.to('meta'), 1.0, ValueError, 'device'),
    (torch.ones(3).to_sparse(), INDEX, 1.0, TypeError, "'score'.*dense"),
    (torch.ones(3), INDEX.to_sparse(), 1.0, TypeError, "'index'.*dense"),
    (torch.ones(3), INDEX, torch.ones(2).to_sparse(), TypeError,
     "'temperature'.*dense"),
    (torch.ones(3, device='meta'), INDEX.to('meta'), 1.0, ValueError,
     "'index' is on device 'meta'"),
    (torch.ones(3), INDEX, 0.0, ValueError, "'temperature'"),
    (torch.ones(3), INDEX, -1.0, ValueError, "'temperature'"),
    (torch.ones(3), INDEX, math.nan, ValueError, "'temperature'"),
    (torch.ones(3), INDEX, math.inf, ValueError, "'temperature'"),
    (torch.ones(3), INDEX, '1', TypeError, "'temperature'"),
    (torch.ones(3), INDEX, torch.ones(1), ValueError, "'temperature'"),
    (torch.ones(3), INDEX, torch.zeros(2), ValueError, "'temperature'"),
    (torch.ones(3), INDEX, torch.ones(2).long(), TypeError, "'temperature'"),
], ids=str)
def test_bad_input(score, index, temperature, error, match):
    with pytest.raises(error, match=match):
        soft_rank(score, index, temperature)
