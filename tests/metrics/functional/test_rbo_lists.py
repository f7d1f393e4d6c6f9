"""RBO of two lists per group against its definition, depth by depth."""
import functools
import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_rankspmm.metrics.functional import (
    rank_biased_overlap,
    rank_biased_overlap_lists,
)

KEYS = ('ext', 'min', 'max', 'res')
TIES = ('a', 'b', 'w')


class SlowList:
    """A ranked list, best first: [[1], [2, 3]] has 2 and 3 tied."""
    def __init__(self, ranking):
        self.span, self.order = {}, []
        for tied in ranking:
            top = len(self.order) + 1
            self.order += tied
            for item in tied:
                self.span[item] = (top, len(self.order))

    def __len__(self):
        return len(self.order)

    def c(self, item, d, ties):
        if item not in self.span:
            return 0.0
        t, b = self.span[item]
        if ties == 'w' or d >= b:
            return float(d >= t)
        return max(0, d - t + 1) / (b - t + 1)


def slow_agreement(x, d, short, long, ties):
    if ties == 'a':
        return x / d

    def total(ranking, power):
        if d > len(ranking):
            return float(d)  # as if it went on without ties
        return math.fsum(ranking.c(i, d, ties)**power for i in ranking.order)

    if ties == 'b':
        return x / (math.sqrt(total(short, 2)) * math.sqrt(total(long, 2)))
    return 2 * x / (total(short, 1) + total(long, 1))


def slow_rbo(first, second, p, ties):
    """Corsi & Urbano (2024), the definitions one by one."""
    short, long = sorted((SlowList(first), SlowList(second)), key=len)
    s, l = len(short), len(long)  # noqa: E741
    both = [i for i in short.order if i in long.span]
    only = [i for i in long.order if i not in short.span]

    def shared(d):
        return math.fsum(short.c(i, d, ties) * long.c(i, d, ties)
                         for i in both)

    def agree(x, d):
        return slow_agreement(x, d, short, long, ties)

    end = agree(shared(s), s) if s else math.nan
    agreed = {'ext': [], 'min': [], 'max': []}
    for d in range(1, l + 1):
        x = dict.fromkeys(agreed, shared(d))
        if d > s:
            parts = [long.c(i, d, ties) for i in only]
            active = [c for c in parts if c > 0]
            x['ext'] += (d - s) * end * math.fsum(active) / len(active)
            x['max'] += math.fsum(parts[:d - s])
        for key in agreed:
            agreed[key].append(agree(x[key], d))
    if p == 1:
        out = {k: math.fsum(a) / l for k, a in agreed.items()}
    else:
        x = shared(l)
        beyond = {
            'ext': (x + (l - s) * end) / l * p**(l + 1) / (1 - p),
            'min': x * slow_tail(p, l),
            'max': slow_rest(x, s, l, p),
        }
        out = {k: (1 - p) / p * (beyond[k] + math.fsum(
            a * p**d for d, a in enumerate(agreed[k], 1)))
            for k, a in agreed.items()}
    return {**out, 'res': out['max'] - out['min']}


@functools.lru_cache
def slow_tail(p, l):  # noqa: E741
    """ln(1 / (1 - p)) minus its first l terms, without cancellation."""
    return math.fsum(p**d / d for d in range(l + 1, l + 1 + int(60 / (1 - p))))


def slow_rest(x, s, l, p):  # noqa: E741
    f = round(l + s - x)
    return math.fsum((2 * d - l - s + x) / d * p**d
                     for d in range(l + 1, f + 1)) + p**(f + 1) / (1 - p)


def triple(rankings, groups=None):
    """The lists of some groups as vectors of items, scores and groups, in a
    random order."""
    entries = [(item, -level, g)
               for g, ranking in zip(groups or itertools.count(), rankings)
               for level, tied in enumerate(ranking) for item in tied]
    random.Random(0).shuffle(entries)
    item, score, index = zip(*entries) if entries else ((), (), ())
    return (torch.tensor(item, dtype=torch.long),
            torch.tensor(score, dtype=torch.double),
            torch.tensor(index, dtype=torch.long))


def untied(*items):
    return [[item] for item in items]


def one_pair(first, second, **kwargs):
    out = rank_biased_overlap_lists(triple([first]), triple([second]),
                                    **{'dim_size': 1, **kwargs})
    assert tuple(out) == KEYS
    return {k: v.item() for k, v in out.items()}


def random_ranking(rng, max_length, num_items):
    items = rng.sample(range(-3, num_items - 3),
                       rng.randint(1, min(max_length, num_items)))
    chance = rng.choice([0.0, 0.3, 0.7, 1.0])
    ranking = [[items[0]]]
    for item in items[1:]:
        if rng.random() < chance:
            ranking[-1].append(item)
        else:
            ranking.append([item])
    return ranking


def check_order_and_range(out):
    low, mid, high = out['min'], out['ext'], out['max']
    assert ((0 <= low) & (low <= mid + 1e-12) & (mid <= high + 1e-12)
            & (high <= 1)).all()
    assert (out['res'] >= 0).all()


@pytest.mark.parametrize('ties', TIES)
@pytest.mark.parametrize('p', [0.1, 0.5, 0.9, 0.98, 0.999, 1.0])
def test_thousands_of_random_pairs(p, ties):
    # 6 * 3 * 300 pairs; many short ones, disjoint and partly so, and equal.
    rng = random.Random(f'{p}{ties}')
    pairs = []
    for _ in range(300):
        length, items = rng.choice([(4, 4), (6, 9), (12, 12), (20, 60)])
        first = random_ranking(rng, length, items)
        second = first if rng.random() < 0.05 else random_ranking(
            rng, length, items)
        pairs.append((first, second))
    firsts, seconds = zip(*pairs)
    out = rank_biased_overlap_lists(triple(firsts), triple(seconds), p, ties)
    wanted = [slow_rbo(*pair, p, ties) for pair in pairs]
    for key in KEYS:
        column = torch.tensor([x[key] for x in wanted], dtype=torch.double)
        torch.testing.assert_close(out[key], column, rtol=0, atol=2e-14)
    check_order_and_range(out)


@pytest.mark.parametrize('ties', TIES)
@pytest.mark.parametrize('p', [0.5, 0.99, 1.0])
def test_hundreds_of_items(p, ties):
    rng = random.Random(0)
    first, second = (random_ranking(rng, 300, 500) for _ in range(2))
    assert one_pair(first, second, p=p, ties=ties) == pytest.approx(
        slow_rbo(first, second, p, ties), abs=1e-13, rel=0)


rankings = st.lists(
    st.integers(-4, 8), min_size=1, max_size=9, unique=True).flatmap(
        lambda items: st.lists(st.integers(0, 4), min_size=len(items),
                               max_size=len(items)).map(
            lambda level: [[i for i, x in zip(items, level) if x == y]
                           for y in sorted(set(level))]))


@given(rankings, rankings, st.sampled_from(TIES),
       st.floats(0.01, 0.99) | st.just(1.0))
@settings(max_examples=150)
def test_any_pair(first, second, ties, p):
    wanted = slow_rbo(first, second, p, ties)
    out = one_pair(first, second, p=p, ties=ties)
    assert out == pytest.approx(wanted, abs=1e-14, rel=0)
    # Neither list is special.
    assert one_pair(second, first, p=p, ties=ties) == pytest.approx(
        out, abs=1e-15, rel=0)


def orders(ranking):
    for order in itertools.product(*map(itertools.permutations, ranking)):
        yield untied(*itertools.chain(*order))


@pytest.mark.parametrize('p', [0.6, 0.9, 1.0])
def test_a_is_the_mean_over_all_orders_of_ties(p):
    rng = random.Random(0)
    for _ in range(40):
        length = rng.randint(1, 5)
        first, second = (random_ranking(rng, length, 7) for _ in range(2))
        # The two lists must be equally long: else which items come first
        # beyond the end of the shorter one depends on the order.
        while sum(map(len, second)) != sum(map(len, first)):
            second = random_ranking(rng, length, 7)
        each = [slow_rbo(a, b, p, 'w')
                for a, b in itertools.product(orders(first), orders(second))]
        out = one_pair(first, second, p=p, ties='a')
        for key in ('ext', 'min'):
            mean = sum(x[key] for x in each) / len(each)
            assert out[key] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize('p', [0.3, 0.9, 1.0])
def test_variants_agree_without_ties(p):
    rng = random.Random(1)
    pairs = [[untied(*rng.sample(range(12), rng.randint(1, 10)))
              for _ in range(2)] for _ in range(50)]
    a, b, w = (rank_biased_overlap_lists(*map(triple, zip(*pairs)), p, ties)
               for ties in TIES)
    for key in KEYS:
        torch.testing.assert_close(b[key], a[key], rtol=0, atol=1e-15)
        torch.testing.assert_close(w[key], a[key], rtol=0, atol=1e-15)


@pytest.mark.parametrize('ties', TIES)
@pytest.mark.parametrize('p', [0.5, 0.9, 1.0])
def test_lists_of_the_same_items_are_a_whole_graph(p, ties):
    torch.manual_seed(0)
    index, item = torch.randint(20, (400, )), torch.arange(400)
    pred, target = (torch.randint(8, (400, )).double() for _ in range(2))
    perm = torch.randperm(400)
    out = rank_biased_overlap_lists(
        (item, pred, index), (item[perm], target[perm], index[perm]), p, ties)
    torch.testing.assert_close(out['ext'], rank_biased_overlap(
        pred, target, index, p, ties, reduction='none'))


@pytest.mark.parametrize('ties', TIES)
def test_long_lists(ties):
    # 100,000 items, of which 1,000 are shared and tie with nothing else; the
    # overlap of the ties, 10 items each, adds up as whole blocks do.
    n, p = 100_000, 0.9999
    item = torch.arange(n)
    score = -(item // 10)
    index = torch.zeros(n).long()
    out = rank_biased_overlap_lists((item, score, index),
                                    (item + n - 1000, score, index), p, ties)
    depth = torch.arange(1, n + 1).double()
    first, last = n - 1000 + depth, depth  # where an item of depth ≤ 1000 is
    late = torch.maximum(first, last)[:1000].long()
    shared = torch.zeros(n)
    if ties == 'w':
        late = (late - 1) // 10 * 10 + 1
    shared = torch.bincount(late, minlength=n + 1)[1:].cumsum(0).double()
    agree = shared / depth
    if ties == 'w':
        agree = shared / ((depth + 9) // 10 * 10)
    elif ties == 'b':
        share = (depth - 1) % 10 + 1
        agree = shared / ((depth - share) + share**2 / 10)
    wanted = ((1 - p) * p**(depth - 1) * agree).sum() + p**n * 1000 / n
    torch.testing.assert_close(out['ext'][0], wanted, rtol=1e-10, atol=0)
    assert out['min'] < out['ext'] < out['max']


def test_the_smallest_and_the_largest_p():
    first, second = [[1], [2, 3]], [[1, 4], [2], [3], [5]]
    tiny = one_pair(first, second, p=5e-324)
    assert tiny['ext'] == tiny['min'] == tiny['max'] == 0.5  # depth 1 alone
    # What is beyond alone: 3 shared items, and 2 of 3 of the other 2.
    large = one_pair(first, second, p=1 - 2**-53)
    assert large['ext'] == pytest.approx((3 + 2 * 2 / 3) / 5)
    assert large['min'] < 1e-13 and large['max'] == pytest.approx(1)


def test_numpy_numbers():
    p, pair = np.float32(0.9), (untied(1, 2, 3), untied(3, 1))
    assert one_pair(*pair, p=p) == one_pair(*pair, p=float(p))


# Known answers ###############################################################


@pytest.mark.parametrize('ties', TIES)
def test_a_prefix_is_extrapolated_to_full_agreement(ties):
    out = one_pair(untied(1, 2, 3), untied(1), p=0.4, ties=ties)
    assert out['ext'] == 1.0


@pytest.mark.parametrize('ties', TIES)
def test_the_last_two_places(ties):
    out = one_pair(untied(1, 2, 3, 4, 5, 6, 7, 8, 0, 9),
                   untied(1, 2, 3, 4, 5, 6, 7, 8, 9, 0), p=0.9, ties=ties)
    assert out['ext'] == pytest.approx(0.9952170310, abs=5e-11)
    assert out['ext'] - 0.9**10 == pytest.approx(0.6465385909, abs=5e-11)
    assert out['min'] < out['ext'] < out['max'] + 1e-15


@pytest.mark.parametrize('ties', TIES)
def test_five_items_against_their_reverse(ties):
    out = one_pair(untied(1, 2, 3, 4, 5), untied(5, 4, 3, 2, 1), p=1.0,
                   ties=ties)
    assert out['ext'] == pytest.approx(0.4166667, abs=5e-8)
    assert out['min'] == out['ext'] == out['max'] and out['res'] == 0


@pytest.mark.parametrize('ties', TIES)
@pytest.mark.parametrize('p', [0.1, 0.4, 0.9, 0.98, 0.999, 1.0])
@pytest.mark.parametrize('n', [1, 2, 7, 100, 1000])
def test_a_list_with_itself_is_one(p, n, ties):
    out = one_pair(untied(*range(n)), untied(*range(n)), p=p, ties=ties)
    assert out['ext'] == out['max'] == 1.0  # to the last bit
    assert out['min'] <= 1.0


@pytest.mark.parametrize('p', [0.1, 0.9, 0.999, 1.0])
def test_a_tied_list_with_itself(p):
    tied = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]
    for ties in ('b', 'w'):
        out = one_pair(tied, tied, p=p, ties=ties)
        assert out['ext'] == out['max'] == 1.0
    assert one_pair(tied, tied, p=p, ties='a')['ext'] < 1.0


@pytest.mark.parametrize('ties', TIES)
@pytest.mark.parametrize('p', [0.1, 0.9, 0.999, 1.0])
def test_disjoint_lists_are_zero(p, ties):
    out = one_pair([[1, 2], [3]], [[4], [5, 6], [7], [8]], p=p, ties=ties)
    assert out['ext'] == out['min'] == 0.0  # to the last bit


# The published implementation's own test table, its rows 2 and 28.
PUBLISHED = [
    ([[13], [1, 4, 5, 6]],
     [[3], [14], [11], [10, 15], [12], [6, 9], [4], [2]], 0.92238320668128,
     {'w': (0.117578490431637, 0.0763135264223449, 0.53999366118093),
      'a': (0.114619469221414, 0.0733545052121218, 0.537945108035391),
      'b': (0.11474835409049, 0.0734833900811979, 0.538589532380772)}),
    ([[1, 9, 15, 17], [13], [4], [3], [2]],
     [[1, 17], [15], [9], [13], [4], [2, 3], [14]], 0.959906916802432,
     {'w': (0.966438584453973, 0.512284507728805, 0.966438584453973),
      'a': (0.939211367148046, 0.485057290422878, 0.939211367148046),
      'b': (0.970894528910972, 0.516740452185804, 0.970894528910972)}),
]


@pytest.mark.parametrize('first,second,p,wanted', PUBLISHED)
@pytest.mark.parametrize('ties', TIES)
def test_published_values(first, second, p, wanted, ties):
    out = one_pair(first, second, p=p, ties=ties)
    assert (out['ext'], out['min'], out['max']) == pytest.approx(
        wanted[ties], abs=1e-13)


# Groups and their items ######################################################


def test_groups_are_independent():
    rng = random.Random(2)
    firsts, seconds = ([random_ranking(rng, 8, 10) for _ in range(5)]
                       for _ in range(2))
    groups = [4, 0, 7, 2, 9]
    for ties in TIES:
        out = rank_biased_overlap_lists(
            triple(firsts, groups), triple(seconds, groups), ties=ties,
            dim_size=12)
        for key in KEYS:
            assert out[key].shape == (12, )
            assert out[key].dtype == torch.double
        for g, first, second in zip(groups, firsts, seconds):
            alone = one_pair(first, second, ties=ties)
            assert {k: out[k][g].item() for k in KEYS} == pytest.approx(
                alone, abs=1e-15)
        for g in {*range(12)} - {*groups}:
            assert all(out[key][g].isnan() for key in KEYS)


def test_any_item_ids():
    first, second = [[1, 2], [3]], [[3], [1], [5], [2]]
    far = {1: -2**63, 2: 2**63 - 1, 3: 0, 5: -7}
    moved = [[[far[i] for i in tied] for tied in ranking]
             for ranking in (first, second)]
    assert one_pair(*moved) == one_pair(first, second)


@pytest.mark.parametrize('dtype', [torch.half, torch.bfloat16, torch.float32,
                                   torch.int64, torch.int8, torch.uint16,
                                   torch.uint32, torch.float8_e5m2])
def test_dtypes(dtype):
    first, second = triple([[[1, 2], [3]]]), triple([[[3], [1]]])
    wanted = rank_biased_overlap_lists(first, second)
    for short in (torch.int32, torch.int64):
        out = rank_biased_overlap_lists(
            *((item.to(short).view(-1, 1), (3 + score).to(dtype).view(-1, 1),
               index.to(short)) for item, score, index in (first, second)))
        assert all(torch.equal(out[key], wanted[key]) for key in KEYS)


def test_infinite_scores_are_scores():
    item, index = torch.arange(4), torch.zeros(4).long()
    score = torch.tensor([math.inf, 1.0, -math.inf, -math.inf])
    other = torch.tensor([3.0, 2.0, 1.0, 1.0])
    out = rank_biased_overlap_lists((item, score, index),
                                    (item, other, index), ties='b')
    assert out['ext'] == 1.0


def test_no_gradient():
    item, score, index = triple([[[1, 2], [3]]])
    score = score.requires_grad_()
    out = rank_biased_overlap_lists((item, score, index), (item, score, index))
    assert not out['ext'].requires_grad


# What is not there, and bad input ############################################


@pytest.mark.parametrize('ties', TIES)
@pytest.mark.parametrize('p', [0.5, 0.9, 1.0])
def test_an_empty_list(p, ties):
    for pair in (([[1, 2], [3]], []), ([], [[1, 2], [3]])):
        out = one_pair(*pair, p=p, ties=ties)
        assert math.isnan(out['ext'])  # nothing to extrapolate from
        assert out['min'] == 0.0
        wanted = slow_rbo(*pair, p, ties)['max']
        assert out['max'] == out['res'] == pytest.approx(wanted, abs=1e-14)
    if ties == 'w':
        assert one_pair(untied(1, 2, 3), [], p=p)['max'] == 1.0


def test_empty_lists_everywhere():
    nothing = triple([])
    out = rank_biased_overlap_lists(nothing, nothing)
    assert all(out[key].shape == (0, ) for key in KEYS)
    out = rank_biased_overlap_lists(nothing, nothing, dim_size=3)
    assert all(out[key].isnan().all() for key in KEYS)


def test_groups_that_only_one_side_has():
    out = rank_biased_overlap_lists(triple([untied(1)]),
                                    triple([untied(1), untied(2)]))
    assert out['ext'].shape == (2, )
    assert out['ext'][0] == 1.0 and out['ext'][1].isnan()
    assert out['min'][1] == 0.0


@pytest.mark.parametrize('which', [0, 1])
def test_nan_stays_in_its_group(which):
    lists = [list(triple([untied(1, 2), untied(1, 2)])) for _ in range(2)]
    bad = int((lists[which][2] == 1).nonzero()[0])
    lists[which][1][bad] = math.nan
    out = rank_biased_overlap_lists(*lists)
    for key in KEYS:
        assert not out[key][0].isnan() and out[key][1].isnan()


ITEM, SCORE = torch.tensor([1, 2, 3]), torch.tensor([0.1, 0.2, 0.3])
INDEX = torch.tensor([0, 0, 1])
GOOD = ITEM, SCORE, INDEX


@pytest.mark.parametrize('bad,error,match', [
    (ITEM, TypeError, 'triple'),
    ((ITEM, SCORE), TypeError, 'triple'),
    (([1, 2, 3], SCORE, INDEX), TypeError, r'\[0\]'),
    ((ITEM.float(), SCORE, INDEX), TypeError, r'\[0\].*long'),
    ((ITEM[:2], SCORE, INDEX), ValueError, r'\[0\].*3 entries'),
    ((ITEM, SCORE.tolist(), INDEX), TypeError, r'\[1\]'),
    ((ITEM, SCORE.to(torch.cfloat), INDEX), TypeError, r'\[1\].*real'),
    ((ITEM, SCORE.view(1, 3), INDEX), ValueError, r'\[1\]'),
    ((ITEM, SCORE, INDEX.float()), TypeError, r'\[2\]'),
    ((ITEM, SCORE, INDEX[:2]), ValueError, r'\[2\].*3 entries'),
    ((ITEM, SCORE, INDEX - 1), ValueError, r'\[2\].*got -1'),
    ((ITEM.to('meta'), SCORE, INDEX), ValueError, r'\[0\].*device'),
    ((ITEM.clamp(max=1), SCORE, INDEX), ValueError,
     'item 1 of group 0 more than once'),
], ids=str)
def test_bad_lists(bad, error, match):
    for name, args in (('first', (bad, GOOD)), ('second', (GOOD, bad))):
        with pytest.raises(error, match=f"'{name}.*{match}"):
            rank_biased_overlap_lists(*args)


def test_lists_on_two_devices():
    with pytest.raises(ValueError, match="'second.*device"):
        rank_biased_overlap_lists(GOOD, tuple(x.to('meta') for x in GOOD))


@pytest.mark.parametrize('kwargs,error', [
    ({'p': 0.0}, ValueError),
    ({'p': 1.1}, ValueError),
    ({'p': math.nan}, ValueError),
    ({'p': '1'}, TypeError),
    ({'ties': 'c'}, ValueError),
    ({'ties': None}, ValueError),
    ({'dim_size': 1}, ValueError),
    ({'dim_size': -1}, ValueError),
    ({'dim_size': 2.0}, TypeError),
], ids=str)
def test_bad_arguments(kwargs, error):
    name, = kwargs
    with pytest.raises(error, match=f"'{name}'"):
        rank_biased_overlap_lists(GOOD, GOOD, **kwargs)
