"""The weight of the first ranks."""
import math

import pytest

from pyg_rankspmm.metrics.functional import rbo_p, rbo_weight
from pyg_rankspmm.metrics.functional.persistence import tail_sum


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


@pytest.mark.parametrize('p', [5e-324, 1e-308, 1e-30])
@pytest.mark.parametrize('depth', [1, 2, 300])
def test_rbo_weight_of_the_smallest_persistence(p, depth):
    assert rbo_weight(p, depth) == 1.0


@pytest.mark.parametrize('p', [5e-324, 1e-3, 0.5, 0.9, 0.999, 0.9999])
@pytest.mark.parametrize('depth', [1, 2, 30, 3000, 10**5])
def test_tail_sum(p, depth):
    wanted = p**depth * math.fsum(p**i / (depth + i) for i in range(
        1 + int(-45 / math.log(p))))
    assert tail_sum(p, depth) == pytest.approx(wanted, rel=1e-8, abs=0)


def test_tail_sum_of_a_large_persistence():
    # sum over i >= d of p^i / i, with p = exp(-x / d), is E_1(x) + p^d / 2d.
    d, x = 10**6, 20.0
    exponential_integral = 9.8355252906498816904e-11  # E_1(20)
    p = math.exp(-x / d)
    assert tail_sum(p, d) == pytest.approx(
        exponential_integral + p**d / (2 * d), rel=1e-8)


@pytest.mark.parametrize('depth', [1, 10, 100])
@pytest.mark.parametrize('weight', [0.01, 0.5, 0.86, 0.999])
def test_rbo_p(weight, depth):
    p = rbo_p(weight, depth)
    assert 0 < p < 1
    assert rbo_weight(p, depth) == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize('p', [0.0, -0.5, 1.1, math.nan])
def test_bad_p(p):
    with pytest.raises(ValueError, match="'p'"):
        rbo_weight(p, 10)


def test_bad_weight_and_depth():
    for weight in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="'weight'"):
            rbo_p(weight, 10)
    for depth, error in ((0, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="'depth'"):
            rbo_weight(0.9, depth)
