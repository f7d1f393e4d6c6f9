"""What all measures of groups of edges have in common."""
import math

import pytest
import torch

from pyg_rankspmm.metrics.functional import kendall_tau, rank_biased_overlap


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


@pytest.mark.parametrize('metric', METRICS)
@pytest.mark.parametrize('dtype', [torch.bool, torch.uint8, torch.int8,
                                   torch.int16, torch.int32, torch.int64,
                                   torch.uint16, torch.uint32, torch.uint64])
def test_integer_targets(metric, dtype):
    pred, target, index = make(levels=2 if dtype == torch.bool else 6)
    torch.testing.assert_close(metric(pred, target.to(dtype), index),
                               metric(pred, target, index))


@pytest.mark.parametrize('metric', METRICS)
def test_neighbours_of_large_integer_targets(metric):
    # They are one number in float64.
    target = 2**60 + torch.tensor([0, 1, 2])
    assert metric(torch.arange(3.0), target, torch.zeros(3).long()) == 1.0


@pytest.mark.parametrize('metric', METRICS)
@pytest.mark.parametrize('far', [10**6, 2**40, 2**63 - 1])
def test_ids_with_wide_gaps(metric, far):
    pred, target, index = make()
    wide = torch.where(index == 2, far, index)
    torch.testing.assert_close(metric(pred, target, wide),
                               metric(pred, target, index))
    if far > 10**6:
        with pytest.raises(ValueError, match='groups'):
            metric(pred, target, wide, reduction='none')


@pytest.mark.parametrize('metric', METRICS)
def test_no_groups(metric):
    empty = torch.empty(0)
    out = metric(empty, empty, empty.long(), reduction='none', dim_size=0)
    assert out.shape == (0, )


# Bad input ###################################################################

PRED, TARGET = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([3, 1, 2])
INDEX = torch.tensor([0, 0, 1])


@pytest.mark.parametrize('metric', METRICS)
@pytest.mark.parametrize('args,kwargs,error,match', [
    (('x', TARGET, INDEX), {}, TypeError, "'pred'"),
    ((PRED.long(), TARGET, INDEX), {}, TypeError, "'pred'"),
    ((PRED, [1, 2, 3], INDEX), {}, TypeError, "'target'"),
    ((PRED, TARGET[:2], INDEX), {}, ValueError, "'target'.*3 entries"),
    ((PRED, TARGET.to(torch.cfloat), INDEX), {}, TypeError, "'target'"),
    ((PRED, TARGET.float().requires_grad_(), INDEX), {}, ValueError,
     "'target'.*detach"),
    ((PRED.view(1, 3), TARGET, INDEX), {}, ValueError, "'pred'"),
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
