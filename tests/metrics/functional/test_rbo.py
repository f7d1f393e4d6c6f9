"""RBO of a graph against its definition, depth by depth."""
import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_rankspmm.metrics.functional import rank_biased_overlap


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


@pytest.mark.parametrize('ties', ['a', 'b', 'w'])
def test_ties_of_both_sides(ties):
    # At depth 1 both are half there, 1/2 of 1 (a) or 1/2 of 1/2 (b), or both
    # fully, 2 of 2 (w).
    agreement = {'a': 0.5, 'b': 1.0, 'w': 1.0}[ties]
    assert one_group([1, 1], [7, 7], p=0.9, ties=ties) == pytest.approx(
        0.1 * agreement + 0.9, abs=1e-15)


@pytest.mark.parametrize('ties', ['a', 'b', 'w'])
def test_ties_of_one_side(ties):
    # At depth 1, one entry is half there and one fully, or both against one.
    agreement = {'a': 0.5, 'b': 0.5 / math.sqrt(0.5), 'w': 2 / 3}[ties]
    assert one_group([1, 1], [1, 2], p=0.9, ties=ties) == pytest.approx(
        0.1 * agreement + 0.9, abs=1e-15)


@pytest.mark.parametrize('ties', ['a', 'b', 'w'])
@pytest.mark.parametrize('p', [0.5, 1.0])
def test_a_group_of_one_is_one(p, ties):
    assert one_group([3], [-1], p=p, ties=ties) == 1.0


@pytest.mark.parametrize('kwargs,error', [
    ({'p': 0.0}, ValueError),
    ({'p': -0.5}, ValueError),
    ({'p': 1.1}, ValueError),
    ({'p': math.nan}, ValueError),
    ({'p': '1'}, TypeError),
    ({'ties': 'c'}, ValueError),
    ({'ties': None}, ValueError),
], ids=str)
def test_bad_arguments(kwargs, error):
    name, = kwargs
    with pytest.raises(error, match=f"'{name}'"):
        one_group([1, 2], [1, 2], **kwargs)
