"""The torchmetrics against the functions on all edges at once."""
import copy
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torchmetrics import MetricCollection
from torchmetrics.retrieval import RetrievalNormalizedDCG

import pyg_rankspmm
from pyg_rankspmm.metrics import KendallTau, RankBiasedOverlap
from pyg_rankspmm.metrics.functional import kendall_tau, rank_biased_overlap

PAIRS = [(RankBiasedOverlap, rank_biased_overlap), (KendallTau, kendall_tau)]
both = pytest.mark.parametrize('cls,function', PAIRS)
each = pytest.mark.parametrize('cls', [RankBiasedOverlap, KendallTau])


def make(num=300, groups=20, seed=0):
    torch.manual_seed(seed)
    index = torch.randint(groups, (num, ))
    index[0] = groups + 1  # a group without edges, and one of a single edge
    return (torch.randint(9, (num, )).double(),
            torch.randint(6, (num, )).double(), index)


def batches(edges, sizes=(1, 99, 0, 150, 50)):
    """Groups are split over batches, one of which is empty."""
    return zip(*(x.split(sizes) for x in edges))


@both
@pytest.mark.parametrize('weighting', ['degree', 'uniform'])
@pytest.mark.parametrize('reduction', ['mean', 'none'])
def test_batches_are_ranked_together(cls, function, weighting, reduction):
    edges = make()
    metric = cls(weighting=weighting, reduction=reduction)
    for batch in batches(edges):
        metric.update(*batch)
    wanted = function(*edges, weighting=weighting, reduction=reduction)
    torch.testing.assert_close(metric.compute(), wanted, equal_nan=True)


@pytest.mark.parametrize('p', [0.5, 1.0])
@pytest.mark.parametrize('ties', ['a', 'b', 'w'])
def test_arguments_of_rbo(p, ties):
    metric = RankBiasedOverlap(p, ties, 'uniform')
    metric.update(*make())
    torch.testing.assert_close(
        metric.compute(),
        rank_biased_overlap(*make(), p=p, ties=ties, weighting='uniform'))


@both
def test_forward_gives_the_value_of_the_batch(cls, function):
    metric = cls()
    for batch in batches(make()):
        torch.testing.assert_close(metric(*batch), function(*batch),
                                   equal_nan=True)
    torch.testing.assert_close(metric.compute(), function(*make()))


@both
def test_reset(cls, function):
    metric = cls()
    metric.update(*make(seed=1))
    metric.compute()
    metric.reset()
    metric.update(*make())
    torch.testing.assert_close(metric.compute(), function(*make()))


@each
@pytest.mark.filterwarnings('ignore:The ``compute`` method')
def test_no_edges(cls):
    metric = cls()
    assert metric.compute().isnan()
    metric.update(*(x[:0] for x in make()))
    assert metric.compute().isnan()


@both
def test_more_edges_after_a_value(cls, function):
    metric = cls()
    for batch in batches(make()):
        metric.update(*batch)
        metric.compute()
    torch.testing.assert_close(metric.compute(), function(*make()))


@both
def test_copies_continue(cls, function):
    metric = cls()
    first, *rest = batches(make())
    metric.update(*first)
    for clone in (copy.deepcopy(metric), metric.clone(),
                  pickle.loads(pickle.dumps(metric))):
        for batch in rest:
            clone.update(*batch)
        torch.testing.assert_close(clone.compute(), function(*make()))
    assert metric._update_count == 1


@both
def test_state_dict(cls, function):
    metric, other = cls(), cls()
    assert not metric.state_dict()  # as for all metrics, until asked for
    metric.persistent(True)
    other.persistent(True)
    metric.update(*make())
    other.load_state_dict(metric.state_dict())
    other._update_count = 1  # torchmetrics does not save it
    torch.testing.assert_close(other.compute(), function(*make()))


def test_collection_keeps_the_edges_once():
    metrics = MetricCollection([RankBiasedOverlap(), KendallTau()])
    ndcg = RetrievalNormalizedDCG()
    with_ndcg = MetricCollection([RankBiasedOverlap(), KendallTau(), ndcg])
    for batch in batches(make()):
        metrics.update(*batch)
        if batch[0].numel() > 0:
            with_ndcg.update(*batch)
    assert len(metrics.compute_groups) == 1
    for out in (metrics.compute(), with_ndcg.compute()):
        for cls, function in PAIRS:
            torch.testing.assert_close(out[cls.__name__], function(*make()))


def test_collection_by_names():
    pred, target, index = make()
    metrics = MetricCollection([RankBiasedOverlap(), KendallTau()])
    out = metrics(target=target, pred=pred, index=index)
    torch.testing.assert_close(out['KendallTau'], kendall_tau(*make()))


@both
@pytest.mark.parametrize('dtype', [torch.half, torch.bfloat16, torch.float32])
def test_dtypes(cls, function, dtype):
    pred, target, index = make()
    metric = cls().half()
    metric.update(pred.to(dtype), target.to(dtype), index.int())
    metric.update(pred.view(-1, 1), target.long(), index)  # another one
    twice = [torch.cat([x, x]) for x in make()]
    torch.testing.assert_close(metric.compute(), function(*twice))


@each
def test_scores_keep_their_digits(cls):
    # Three numbers that are one in float32.
    pred = 1e9 + torch.tensor([0.0, 1.0, 2.0], dtype=torch.double)
    target = torch.tensor([10**15, 10**15 + 1, 10**15 + 2])
    metric = cls().set_dtype(torch.half)
    metric.update(pred, target, torch.zeros(3).long())
    assert metric.compute() == 1.0


@each
@pytest.mark.parametrize('dtype', [torch.int64, torch.uint64])
def test_whole_numbers_that_float64_does_not_have(cls, dtype):
    target = torch.tensor([2**53, 2**53 + 1]).to(dtype)
    with pytest.raises(ValueError, match="'target'.*2.53.*9007199254740992"):
        cls().update(torch.tensor([0.1, 0.2]), target, torch.zeros(2).long())


@both
def test_the_caller_may_write_over_a_batch(cls, function):
    metric = cls()
    edges = make()
    metric.update(*edges)
    for x in edges:
        x.zero_()
    torch.testing.assert_close(metric.compute(), function(*make()))


@both
def test_no_graph_is_kept(cls, function):
    pred, target, index = make()
    metric = cls()
    metric.update(pred.requires_grad_(), target, index)
    assert not metric.pred[0].requires_grad
    assert not metric.compute().requires_grad


@each
def test_moves_with_its_state(cls):
    metric = cls()
    metric.update(*make())
    metric.to('meta')  # a device that all machines have
    assert {x.device.type for x in metric.edges()} == {'meta'}


@both
def test_compute_on_cpu(cls, function):
    metric = cls(compute_on_cpu=True)
    metric.update(*make())
    torch.testing.assert_close(metric.compute(), function(*make()))


@both
def test_ids_with_wide_gaps(cls, function):
    pred, target, index = make()
    far = torch.where(index == 2, 2**62, index)
    metric = cls()
    metric.update(pred, target, far)
    torch.testing.assert_close(metric.compute(), function(*make()))
    metric = cls(reduction='none')
    metric.update(pred, target, far)
    with pytest.raises(ValueError, match='groups'):
        metric.compute()


def test_repr():
    assert repr(RankBiasedOverlap(0.8, 'b')) == (
        "RankBiasedOverlap(p=0.8, ties='b', weighting='degree', "
        "reduction='mean')")
    assert 'uniform' in repr(KendallTau('uniform'))


# Several processes ###########################################################


def work(rank, path):
    """At first process 0 has two batches and process 1 none; then process 1
    has one, in which the groups of the others go on, and process 0 an empty
    one (without any, torchmetrics answers from its cache)."""
    dist.init_process_group('gloo', f'file://{path}/store', rank=rank,
                            world_size=2)
    *early, nothing, late = batches(make(), (100, 50, 0, 150))
    out = {}
    metrics = [
        RankBiasedOverlap(), KendallTau(),
        MetricCollection([RankBiasedOverlap(0.5, 'b'), KendallTau('uniform')])
    ]
    for when, mine in (('early', [early, []]), ('late', [[nothing], [late]])):
        for metric in metrics:
            for batch in mine[rank]:
                metric.update(*batch)
        out[when] = [metric.compute() for metric in metrics]
    torch.save(out, f'{path}/{rank}')
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(),
                    reason='needs gloo')
@pytest.mark.filterwarnings('ignore:The ``compute`` method')
def test_processes_give_the_value_of_one(tmp_path):
    root = str(Path(pyg_rankspmm.__file__).parents[1])
    workers = [subprocess.Popen(
        [sys.executable, __file__, str(rank), str(tmp_path)],
        env={**os.environ, 'PYTHONPATH': root, 'OMP_NUM_THREADS': '1'})
        for rank in range(2)]
    try:
        assert not any(worker.wait(timeout=300) for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
    for rank in range(2):
        out = torch.load(tmp_path / str(rank))
        for when, size in (('early', 150), ('late', 300)):
            edges = [x[:size] for x in make()]
            torch.testing.assert_close(out[when], [
                rank_biased_overlap(*edges), kendall_tau(*edges),
                {'RankBiasedOverlap': rank_biased_overlap(*edges, 0.5, 'b'),
                 'KendallTau': kendall_tau(*edges, 'uniform')}])


# Bad input ###################################################################

PRED, TARGET = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([3, 1, 2])
INDEX = torch.tensor([0, 0, 1])


@each
@pytest.mark.parametrize('args,error,match', [
    ((PRED.tolist(), TARGET, INDEX), TypeError, "'pred'"),
    ((PRED.long(), TARGET, INDEX), TypeError, "'pred'"),
    ((PRED, TARGET[:2], INDEX), ValueError, "'target'.*3 entries"),
    ((PRED, TARGET.to(torch.cfloat), INDEX), TypeError, "'target'"),
    ((PRED, TARGET, INDEX[:2]), ValueError, "'index'.*3 entries"),
    ((PRED, TARGET, INDEX.float()), TypeError, "'index'"),
    ((PRED, TARGET, INDEX - 1), ValueError, "'index'.*got -1"),
    ((PRED, TARGET, INDEX.to('meta')), ValueError, 'device'),
], ids=str)
def test_bad_input_is_refused_when_it_comes(cls, args, error, match):
    metric = cls()
    metric.update(PRED, TARGET, INDEX)
    with pytest.raises(error, match=match):
        metric.update(*args)
    assert len(metric.index) == 1  # nothing of it is kept


@each
@pytest.mark.parametrize('which', [0, 1])
def test_nan_is_not_hidden(cls, which):
    edges = make()
    edges[which][3] = math.nan
    metric = cls(reduction='none')
    metric.update(*edges)
    assert metric.compute()[edges[2][3]].isnan()
    metric = cls()
    metric.update(*edges)
    assert metric.compute().isnan()


@pytest.mark.parametrize('cls,kwargs,error', [
    (RankBiasedOverlap, {'p': 0.0}, ValueError),
    (RankBiasedOverlap, {'p': '1'}, TypeError),
    (RankBiasedOverlap, {'ties': 'c'}, ValueError),
    (RankBiasedOverlap, {'weighting': 'sqrt'}, ValueError),
    (RankBiasedOverlap, {'reduction': 'sum'}, ValueError),
    (KendallTau, {'weighting': 'sqrt'}, ValueError),
    (KendallTau, {'reduction': 'sum'}, ValueError),
], ids=str)
def test_bad_arguments(cls, kwargs, error):
    name, = kwargs
    with pytest.raises(error, match=f"'{name}'"):
        cls(**kwargs)


if __name__ == '__main__':  # one of several processes
    work(int(sys.argv[1]), sys.argv[2])
