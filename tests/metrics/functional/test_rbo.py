"""Ranking measures against their definitions, depth by depth and pair by
pair."""
import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_rankspmm.metrics.functional import (
    kendall_tau,
    rank_biased_overlap,
    rbo_p,
    rbo_weight,
)


def rbo_by_sets(first, second, p):
    """Two permutations of the same items, depth by depth (Webber et al.,
    eq. 30; average overlap for p = 1)."""
    n, total = len(first), 0.0
    for d in range(1, n + 1):
        agreement = len(set(first[:d]) & set(second[:d])) / d
        total += agreement * ((1 - p) * p**(d - 1) if p < 1 else 1 / n)
    return total + (p**n if p < 1 else 0.0)


def rankings(score):
    """All orders by falling score, equal scores in any order."""
    levels = sorted(set(score), reverse=True)
    ties = [[i for i, s in enumerate(score) if s == level] for level in levels]
    for order in itertools.product(*map(itertools.permutations, ties)):
        yield list(itertools.chain(*order))


def mean_rbo(pred, target, p):
    pairs = list(itertools.product(rankings(pred), rankings(target)))
    return sum(rbo_by_sets(a, b, p) for a, b in pairs) / len(pairs)


def one_group(pred, target, **kwargs):
    return rank_biased_overlap(torch.tensor(pred).double(),
                               torch.tensor(target), torch.zeros(
                                   len(pred)).long(), **kwargs).item()


@pytest.mark.parametrize('p', [0.3, 0.9, 0.98, 1.0])
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_rbo_without_ties(p, data):
    n = data.draw(st.integers(1, 30))
    pred = data.draw(st.permutations(range(n)))
    target = data.draw(st.permutations(range(n)))
    first, second = next(rankings(pred)), next(rankings(target))
    assert one_group(pred, target, p=p) == pytest.approx(
        rbo_by_sets(first, second, p), abs=1e-14)


@pytest.mark.parametrize('p', [0.5, 0.9, 1.0])
@given(entries=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)),
                        min_size=1, max_size=5))
@settings(deadline=None, max_examples=60)
def test_rbo_with_ties_is_the_mean_over_all_orders(p, entries):
    pred, target = zip(*entries)
    assert one_group(pred, target, p=p) == pytest.approx(
        mean_rbo(pred, target, p), abs=1e-11)  # up to 14,400 terms


def test_rbo_of_a_list_and_its_reverse():
    assert one_group(range(5), range(5, 0, -1), p=1.0) == pytest.approx(
        0.4166667, abs=1e-7)


@pytest.mark.parametrize('p', [0.1, 0.5, 0.9, 0.98, 0.999, 1.0])
@pytest.mark.parametrize('n', [1, 2, 10, 100, 1000])
def test_rbo_of_a_list_with_itself_is_one(p, n):
    assert one_group(range(n), range(n), p=p) == 1.0  # to the last bit


@pytest.mark.parametrize('p', [0.99, 1.0])
def test_rbo_of_a_long_list_with_ties(p):
    n = 200_000
    torch.manual_seed(0)
    first, second = (torch.randperm(n) // 2 for _ in range(2))
    # Ties span the ranks t and t + 1, t odd: two spans are equal or disjoint.
    t, other = (n - 1 - 2 * score for score in (first, second))
    late, half = torch.maximum(t, other), torch.where(t == other, 0.25, 0.5)
    steps = torch.zeros(n + 2, dtype=torch.float64)
    steps.index_add_(0, late, half.double())
    steps.index_add_(0, late + 1, 1 - half.double())
    depth = torch.arange(1, n + 1).double()
    agreement = steps.cumsum(0)[1:n + 1] / depth
    weight = (1 - p) * p**(depth - 1) if p < 1 else 1 / n
    wanted = (weight * agreement).sum() + (p**n if p < 1 else 0.0)
    actual = rank_biased_overlap(first.double(), second, 0 * first, p)
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-11)


def test_rbo_beyond_the_end_of_a_list():
    # Webber et al.: two lists of ten that differ in the last two places.
    first = [1, 2, 3, 4, 5, 6, 7, 8, 0, 9]
    second = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    pred = [-first.index(i) for i in range(10)]
    target = [-second.index(i) for i in range(10)]
    assert one_group(pred, target, p=0.9) == pytest.approx(0.9952170310,
                                                           abs=1e-10)


def make(num=200, groups=8, levels=6, seed=0):
    torch.manual_seed(seed)
    index = torch.randint(groups, (num, ))
    index[index == 3] = 2
    return (torch.randint(levels, (num, )).double(),
            torch.randint(levels, (num, )).double(), index)


METRICS = [rank_biased_overlap, kendall_tau]


@pytest.mark.parametrize('metric', METRICS)
def test_groups_are_independent(metric):
    pred, target, index = make()
    out = metric(pred, target, index, reduction='none', dim_size=10)
    assert out.shape == (10, )
    for g in range(10):
        mine = index == g
        if mine.any():
            alone = metric(pred[mine], target[mine], 0 * index[mine])
            torch.testing.assert_close(out[g], alone)
        else:
            assert out[g].isnan()


@pytest.mark.parametrize('metric', METRICS)
def test_means(metric):
    pred, target, index = make()
    each = metric(pred, target, index, reduction='none')
    degree = torch.bincount(index).double()
    keep = degree > 0
    expected = (each * degree)[keep].sum() / degree.sum()
    torch.testing.assert_close(metric(pred, target, index), expected)
    torch.testing.assert_close(
        metric(pred, target, index, weighting='uniform'), each[keep].mean())


@pytest.mark.parametrize('metric', METRICS)
def test_invariances(metric):
    pred, target, index = make()
    expected = metric(pred, target, index)
    perm = torch.randperm(index.numel())
    for args in ((pred[perm], target[perm], index[perm]),
                 (3 * pred - 7, target.exp(), index),
                 (pred.float(), target.long(), index.int()),
                 (pred.view(-1, 1), target.view(-1, 1), index),
                 (pred, target, 5 + 3 * index)):
        torch.testing.assert_close(metric(*args), expected)


@pytest.mark.parametrize('metric', METRICS)
@pytest.mark.parametrize('which', [0, 1])
def test_nan_stays_in_its_group(metric, which):
    args = list(make())
    expected = metric(*args, reduction='none')
    args[which] = args[which].clone()
    args[which][0] = math.nan
    actual = metric(*args, reduction='none')
    group = args[2][0]
    assert actual[group].isnan()
    expected[group] = math.nan
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize('metric', METRICS)
def test_infinite_scores_are_scores(metric):
    pred, target, index = make()
    expected = metric(pred, target, index)
    pred = torch.where(pred == 5, math.inf, pred)
    pred = torch.where(pred == 0, -math.inf, pred)
    torch.testing.assert_close(metric(pred, target, index), expected)


@pytest.mark.parametrize('metric', METRICS)
def test_no_entries(metric):
    empty = torch.empty(0)
    assert metric(empty, empty, empty.long()).isnan()
    assert metric(empty, empty, empty.long(), reduction='none',
                  dim_size=3).isnan().all()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16,
                                   torch.float32])
@pytest.mark.parametrize('metric', METRICS)
def test_dtypes(metric, dtype):
    pred, target, index = make()
    torch.testing.assert_close(
        metric(pred.to(dtype), target.to(dtype), index),
        metric(pred, target, index))


# Kendall #####################################################################


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


# The weight of the first ranks ###############################################


def weight_by_simulation(p, depth, num=20_000):
    """The first 'depth' ranks of identical endless lists get this share of
    all weight: sum over d of w_d min(d, depth) / d."""
    return math.fsum((1 - p) * p**(d - 1) * min(d, depth) / d
                     for d in range(1, num))


@pytest.mark.parametrize('p', [0.1, 0.5, 0.9, 0.98, 0.99])
@pytest.mark.parametrize('depth', [1, 2, 10, 50, 300])
def test_rbo_weight(p, depth):
    assert rbo_weight(p, depth) == pytest.approx(
        weight_by_simulation(p, depth), abs=1e-9)


def test_rbo_weight_of_the_paper():
    assert rbo_weight(0.9, 10) == pytest.approx(0.8556, abs=5e-5)
    assert rbo_weight(0.98, 50) == pytest.approx(0.8522, abs=5e-5)
    assert rbo_weight(1.0, 10) == 0.0


@pytest.mark.parametrize('depth', [1, 10, 100])
@pytest.mark.parametrize('weight', [0.01, 0.5, 0.86, 0.999])
def test_rbo_p(weight, depth):
    p = rbo_p(weight, depth)
    assert 0 < p < 1
    assert rbo_weight(p, depth) == pytest.approx(weight, abs=1e-6)


# Bad input ###################################################################

PRED, TARGET = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([3, 1, 2])
INDEX = torch.tensor([0, 0, 1])


@pytest.mark.parametrize('metric', METRICS)
@pytest.mark.parametrize('args,kwargs,error,match', [
    (('x', TARGET, INDEX), {}, TypeError, "'pred'"),
    ((PRED.long(), TARGET, INDEX), {}, TypeError, "'pred'"),
    ((PRED, [1, 2, 3], INDEX), {}, TypeError, "'target'"),
    ((PRED, TARGET[:2], INDEX), {}, ValueError, "'target'.*3 entries"),
    ((PRED, TARGET, INDEX[:2]), {}, ValueError, "'index'.*3 entries"),
    ((PRED, TARGET, INDEX.float()), {}, TypeError, "'index'"),
    ((PRED, TARGET, INDEX - 1), {}, ValueError, "'index'.*got -1"),
    ((PRED, TARGET, INDEX), {'dim_size': 1}, ValueError, 'got 1'),
    ((PRED, TARGET, INDEX), {'dim_size': -1}, ValueError, "'dim_size'"),
    ((PRED, TARGET, INDEX), {'dim_size': 2.0}, TypeError, "'dim_size'"),
    ((PRED, TARGET, INDEX.to('meta')), {}, ValueError, 'device'),
    ((PRED, TARGET, INDEX), {'weighting': 'x'}, ValueError, "'weighting'"),
    ((PRED, TARGET, INDEX), {'reduction': 'x'}, ValueError, "'reduction'"),
], ids=str)
def test_bad_input(metric, args, kwargs, error, match):
    with pytest.raises(error, match=match):
        metric(*args, **kwargs)


@pytest.mark.parametrize('p', [0.0, -0.5, 1.1, math.nan])
def test_bad_p(p):
    with pytest.raises(ValueError, match="'p'"):
        rank_biased_overlap(PRED, TARGET, INDEX, p=p)
    with pytest.raises(ValueError, match="'p'"):
        rbo_weight(p, 10)


def test_bad_weight_and_depth():
    for weight in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="'weight'"):
            rbo_p(weight, 10)
    for depth, error in ((0, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="'depth'"):
            rbo_weight(0.9, depth)


def test_random_lists_against_random_orders_of_ties():
    # Longer lists than all their orders could be listed for.
    rng = random.Random(0)
    pred = [rng.randrange(6) for _ in range(20)]
    target = [rng.randrange(6) for _ in range(20)]

    def shuffled(score):
        return sorted(range(20), key=lambda i: (-score[i], rng.random()))

    samples = [rbo_by_sets(shuffled(pred), shuffled(target), 0.9)
               for _ in range(4000)]
    mean = sum(samples) / len(samples)
    deviation = torch.tensor(samples).std() / math.sqrt(len(samples))
    assert abs(one_group(pred, target, p=0.9) - mean) < 5 * deviation
