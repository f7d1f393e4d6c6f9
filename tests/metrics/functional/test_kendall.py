"""Kendall's tau-b against all pairs."""
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_rankspmm.metrics.functional import kendall_tau


def tau_b(pred, target):
    """All pairs."""
    concordant = discordant = only_pred = only_target = 0
    for (a, b), (c, d) in itertools.combinations(zip(pred, target), 2):
        x, y = (a > c) - (a < c), (b > d) - (b < d)
        concordant += x * y > 0
        discordant += x * y < 0
        only_pred += x == 0 and y != 0
        only_target += y == 0 and x != 0
    untied = concordant + discordant
    scale = math.sqrt((untied + only_pred) * (untied + only_target))
    return (concordant - discordant) / scale if scale else math.nan


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5),
                          st.integers(0, 5)), min_size=1, max_size=40))
@settings(deadline=None, max_examples=200)
def test_kendall_is_the_sum_over_all_pairs(entries):
    index, pred, target = (torch.tensor(x) for x in zip(*entries))
    out = kendall_tau(pred.double(), target, index, reduction='none')
    for g in range(len(out)):
        mine = index == g
        expected = tau_b(pred[mine].tolist(), target[mine].tolist())
        assert out[g].item() == pytest.approx(expected, nan_ok=True)


def test_kendall_of_a_long_list():
    n = 100_000
    order = torch.arange(n).double()
    index = torch.zeros(n).long()
    assert kendall_tau(order, order, index).item() == 1.0
    assert kendall_tau(order, -order, index).item() == -1.0
    shuffled = order[torch.randperm(n)]
    assert abs(kendall_tau(order, shuffled, index).item()) < 0.02


def test_kendall_leaves_undefined_groups_out():
    pred = torch.tensor([1.0, 2.0, 3.0, 3.0, 1.0])
    target = torch.tensor([1.0, 2.0, 5.0, 5.0, 1.0])
    index = torch.tensor([0, 0, 1, 1, 2])
    each = kendall_tau(pred, target, index, reduction='none')
    assert each[0] == 1.0 and each[1:].isnan().all()
    assert kendall_tau(pred, target, index) == 1.0


def test_kendall_does_not_leave_out_nan():
    pred = torch.tensor([1.0, 2.0, math.nan, 1.0])
    target = torch.tensor([1.0, 2.0, 1.0, 2.0])
    index = torch.tensor([0, 0, 1, 1])
    assert kendall_tau(pred, target, index).isnan()


def test_kendall_of_a_long_group():
    # 200,000 entries: all pairs would be 2 * 10^10.
    x = torch.arange(200_000.0)
    index = torch.zeros(200_000).long()
    assert kendall_tau(x, x.long() // 2 * 2, index) > 0.999
    assert kendall_tau(-x, x, index) == -1.0
    swapped = x.view(-1, 2).flip(1).flatten()  # every other pair of neighbours
    pairs = 200_000 * 199_999 / 2
    assert kendall_tau(swapped, x, index).item() == pytest.approx(
        1 - 2 * 100_000 / pairs, abs=1e-15)


@pytest.mark.parametrize('reduction', ['mean', 'none'])
def test_kendall_that_is_undefined_everywhere(reduction):
    index = torch.tensor([0, 0, 1])
    for pred, target in ((torch.zeros(3), torch.arange(3)),
                         (torch.arange(3.0), torch.ones(3))):
        assert kendall_tau(pred, target, index,
                           reduction=reduction).isnan().all()
