"""RankingLoss against a loss written down source node by source node."""
import copy
import datetime
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.parallel import DistributedDataParallel

from pyg_rankspmm import RankingLoss, SparseGATConv
from pyg_rankspmm.metrics.functional import rank_biased_overlap


def make(num=40, nodes=7, levels=4, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    src = torch.randint(nodes, (num, ))
    src[src == 3] = 2  # a node without edges
    src[0] = nodes  # and one with a single edge
    edge_label_index = torch.stack([src, torch.randint(30, (num, ))])
    pred = torch.randn(num, dtype=dtype, requires_grad=True)
    return pred, torch.randint(levels, (num, )).to(dtype), edge_label_index


def by_hand(pred, target, p, tau):
    """n (1 - RBO) of one node: depth by depth, with all pairs of ranks."""
    n = len(pred)
    z = (pred.view(1, -1) - pred.view(-1, 1)) / tau
    cdf = torch.where(z < 0, 0.5 * z.clamp(max=0).exp(),
                      1 - 0.5 * (-z.clamp(min=0)).exp())
    rank = 0.5 + cdf.sum(1)  # without j = i, which gives 1/2

    rbo = pred.new_zeros(())
    for d in range(1, n + 1):
        weight = (1 - p) * p**(d - 1) if p < 1 else 1 / n
        for i in range(n):
            above = int((target > target[i]).sum())
            tied = int((target == target[i]).sum())
            wanted = min(1.0, max(0.0, (d - above) / tied))
            # 1 up to rank d, 0 from rank d + 1 on, linear between.
            there = (d + 1 - rank[i]).clamp(0, 1)
            rbo = rbo + weight / d * wanted * there
    return n * (1 - rbo - (p**n if p < 1 else 0.0))


def expected(pred, target, index, p, temperature, relative, weighting,
             num_nodes):
    losses, weights = [], []
    for g in range(num_nodes):
        mine = index == g
        n = int(mine.sum())
        if n == 0:
            losses.append(pred.new_zeros(()))
            weights.append(0.0)
            continue
        tau = temperature
        if relative:
            x = pred.detach()
            tau = temperature * max(x[mine].std(correction=0),
                                    1e-3 * x.std(correction=0))
        loss = by_hand(pred[mine], target[mine], p, tau)
        losses.append(loss if weighting == 'degree' else loss / n)
        weights.append(n if weighting == 'degree' else 1.0)
    return torch.stack(losses), sum(weights)


@pytest.mark.parametrize('p', [0.6, 0.9, 1.0])
@pytest.mark.parametrize('relative', [True, False])
@pytest.mark.parametrize('weighting', ['degree', 'uniform'])
@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
@pytest.mark.parametrize('group_by', ['src', 'dst'])
def test_loss(p, relative, weighting, reduction, group_by):
    pred, target, edge_label_index = make()
    index = edge_label_index[0]
    if group_by == 'dst':
        edge_label_index = edge_label_index.flip(0)
    criterion = RankingLoss(p, 0.3, relative, weighting, reduction, group_by)
    actual = criterion(pred, target, edge_label_index)
    each, weight = expected(pred, target, index, p, 0.3, relative, weighting,
                            8)
    assert not each[3] and not each[7]  # no edge, a single edge
    wanted = {'none': each, 'sum': each.sum(), 'mean': each.sum() / weight}
    wanted = wanted[reduction]
    torch.testing.assert_close(actual, wanted)
    seed = torch.randn_like(wanted)
    torch.testing.assert_close(torch.autograd.grad(actual, pred, seed),
                               torch.autograd.grad(wanted, pred, seed))


def test_gradients_of_gradients():
    pred, target, edge_label_index = make(15, 3)
    criterion = RankingLoss(p=0.9, relative=False)
    assert gradcheck(lambda x: criterion(x, target, edge_label_index), pred)
    assert gradgradcheck(lambda x: criterion(x, target, edge_label_index),
                         pred)


def test_small_temperature_gives_the_metric():
    torch.manual_seed(0)
    pred, target, edge_label_index = make(levels=5)
    for p in (0.9, 1.0):
        loss = RankingLoss(p, 1e-9)(pred, target, edge_label_index)
        rbo = rank_biased_overlap(pred, target, edge_label_index[0], p)
        torch.testing.assert_close(1 - loss, rbo)


def test_perfect_order_has_no_loss_and_reverse_a_large_one():
    target = torch.arange(10.0)
    index = torch.zeros(10).long()
    criterion = RankingLoss(temperature=1e-3)
    assert criterion(target, target, index).abs() < 1e-6
    assert criterion(-target, target, index) > 0.5


def test_training_sorts():
    torch.manual_seed(0)
    _, target, edge_label_index = make(100, levels=100)
    pred = torch.randn(100, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([pred], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        RankingLoss()(pred, target, edge_label_index).backward()
        optimizer.step()
    assert rank_biased_overlap(pred, target, edge_label_index[0]) > 0.97


@pytest.mark.parametrize('factor', [10.0, 0.1, 1e20])
@pytest.mark.parametrize('shift', [0.0, 3.0])
def test_relative_temperature_forgets_the_scale(factor, shift):
    pred, target, edge_label_index = make()
    criterion = RankingLoss()
    loss = criterion(pred, target, edge_label_index)
    scaled = criterion(factor * (pred + shift), target, edge_label_index)
    torch.testing.assert_close(scaled, loss)
    torch.testing.assert_close(torch.autograd.grad(scaled, pred),
                               torch.autograd.grad(loss, pred))
    other = RankingLoss(relative=False)
    assert (other(10 * pred, target, edge_label_index)
            - other(pred, target, edge_label_index)).abs() > 1e-3


def test_invariances():
    pred, target, edge_label_index = make()
    for criterion in (RankingLoss(), RankingLoss(0.9, relative=False)):
        loss = criterion(pred, target, edge_label_index)
        perm = torch.randperm(pred.numel())
        for args in (
            (pred[perm], target[perm], edge_label_index[:, perm]),
            (pred, target, edge_label_index[0]),
            (pred, target, 2 * edge_label_index + 5),
            (pred, target, edge_label_index.int()),
            (pred.view(-1, 1), target.view(-1, 1), edge_label_index),
            (pred, target.long(), edge_label_index),
            (pred, 3 * target - 8, edge_label_index),
            (pred, target.to(torch.bfloat16), edge_label_index),
            (pred, target.half(), edge_label_index),
        ):
            torch.testing.assert_close(criterion(*args), loss)


def test_dim_size():
    pred, target, edge_label_index = make()
    each = RankingLoss(reduction='none')(pred, target, edge_label_index)
    assert each.shape == (8, )
    more = RankingLoss(reduction='none')(pred, target, edge_label_index,
                                         dim_size=12)
    assert torch.equal(more[:8], each) and not more[8:].any()
    criterion = RankingLoss()
    torch.testing.assert_close(
        criterion(pred, target, edge_label_index, dim_size=12),
        criterion(pred, target, edge_label_index))


@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
@pytest.mark.parametrize('p', [0.9, 1.0])
def test_only_groups_of_one(reduction, p):
    pred = torch.randn(3, requires_grad=True)
    loss = RankingLoss(p, reduction=reduction)(pred, torch.tensor([3, 1, 2]),
                                               torch.tensor([0, 2, 1]))
    assert not loss.any()
    loss.sum().backward()
    assert not pred.grad.any()


def test_no_groups():
    loss = RankingLoss(reduction='none')(torch.empty(0), torch.empty(0),
                                         torch.empty(0).long(), dim_size=0)
    assert loss.shape == (0, )


@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
def test_no_edges(reduction):
    pred = torch.randn(0, requires_grad=True)
    loss = RankingLoss(reduction=reduction)(
        pred, torch.empty(0), torch.empty(2, 0).long(),
        dim_size=3 if reduction == 'none' else None)
    assert not loss.any() and loss.requires_grad
    assert loss.shape == ((3, ) if reduction == 'none' else ())
    loss.sum().backward()
    assert pred.grad.shape == (0, )


@pytest.mark.parametrize('p', [0.9, 1.0])
def test_all_targets_equal(p):
    pred, target, edge_label_index = make()
    loss = RankingLoss(p)(pred, 0 * target + 3, edge_label_index)
    loss.backward()
    assert loss.isfinite() and pred.grad.isfinite().all()


@pytest.mark.parametrize('relative', [True, False])
@pytest.mark.parametrize('value', [0.0, 2.5, -1e6])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_all_predictions_equal(relative, value, dtype):
    _, target, edge_label_index = make()
    pred = torch.full((40, ), value, dtype=dtype, requires_grad=True)
    loss = RankingLoss(relative=relative)(pred, target, edge_label_index)
    loss.backward()
    assert loss.isfinite() and pred.grad.isfinite().all()
    assert pred.grad.any()


def test_a_group_of_equal_predictions_has_a_moderate_gradient():
    pred, target, edge_label_index = make(200)
    pred = pred.detach()
    mine = edge_label_index[0] == 1
    pred[mine] = 0.5
    pred.requires_grad_()
    RankingLoss()(pred, target, edge_label_index).backward()
    assert pred.grad[mine].any()
    assert pred.grad[mine].abs().max() < 1e4 * pred.grad[~mine].abs().max()


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('relative', [True, False])
@pytest.mark.parametrize('p', [0.9, 1.0])
def test_what_is_not_finite_stays_with_its_node(bad, relative, p):
    pred, target, edge_label_index = make()
    criterion = RankingLoss(p, relative=relative, reduction='none')
    clean = criterion(pred, target, edge_label_index)
    node = int(edge_label_index[0, 1])
    other = torch.arange(8) != node
    clean_grad, = torch.autograd.grad(clean[other].sum(), pred)

    pred = pred.detach().clone()
    pred[1] = bad
    pred.requires_grad_()
    loss = criterion(pred, target, edge_label_index)
    assert loss[node].isnan()
    torch.testing.assert_close(loss[other], clean[other], rtol=1e-3,
                               atol=1e-3)  # the floor may move a little
    grad, = torch.autograd.grad(loss[other].sum(), pred)
    keep = edge_label_index[0] != node
    torch.testing.assert_close(grad[keep], clean_grad[keep], rtol=1e-3,
                               atol=1e-3)


@pytest.mark.parametrize('bad', [math.nan, math.inf])
@pytest.mark.parametrize('relative', [True, False])
def test_what_is_not_finite_on_a_single_edge(bad, relative):
    loss = RankingLoss(relative=relative, reduction='none')(
        torch.tensor([bad, 1.0, 2.0]), torch.tensor([1.0, 2.0, 1.0]),
        torch.tensor([0, 1, 1]))
    assert loss[0].isnan() and loss[1].isfinite()


def test_nan_in_the_target_stays_with_its_node():
    pred, target, edge_label_index = make()
    criterion = RankingLoss(reduction='none')
    clean = criterion(pred, target, edge_label_index)
    target[1] = math.nan
    loss = criterion(pred, target, edge_label_index)
    node = int(edge_label_index[0, 1])
    assert loss[node].isnan()
    other = torch.arange(8) != node
    assert torch.equal(loss[other], clean[other])


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16,
                                   torch.float32, torch.float8_e5m2])
def test_dtypes(dtype):
    pred, target, edge_label_index = make(dtype=torch.float64)
    pred = pred.detach().to(dtype).requires_grad_()
    loss = RankingLoss()(pred, target, edge_label_index)
    assert loss.dtype == torch.float32
    loss.backward()
    assert pred.grad.dtype == dtype
    exact = RankingLoss()(pred.detach().double(), target.double(),
                          edge_label_index)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('scale', [1e-30, 1e30])
def test_extreme_predictions(scale):
    pred, target, edge_label_index = make(dtype=torch.float32)
    pred = (pred.detach() * scale).requires_grad_()
    for relative in (True, False):
        pred.grad = None
        loss = RankingLoss(relative=relative)(pred, target, edge_label_index)
        loss.backward()
        assert loss.isfinite() and pred.grad.isfinite().all()


@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
@pytest.mark.parametrize('dim_size', [None, 9])
def test_compile(reduction, dim_size):
    torch._dynamo.reset()
    if reduction == 'none' and dim_size is None:
        return
    pred, target, edge_label_index = make()
    criterion = RankingLoss(reduction=reduction)
    compiled = torch.compile(criterion, fullgraph=True)
    args = target, edge_label_index, dim_size
    actual, wanted = compiled(pred, *args), criterion(pred, *args)
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(actual.sum(), pred),
        torch.autograd.grad(wanted.sum(), pred))


def test_compile_refuses_negative_groups():
    torch._dynamo.reset()
    compiled = torch.compile(RankingLoss(), fullgraph=True)
    with pytest.raises(ValueError, match='negative'):
        compiled(torch.randn(3), torch.randn(3), torch.tensor([0, -1, -1]))


@pytest.mark.parametrize('far', [10**6, 2**40, 2**63 - 1])
def test_ids_with_wide_gaps(far):
    pred, target, edge_label_index = make()
    index = edge_label_index[0]
    for reduction in ('mean', 'sum'):
        criterion = RankingLoss(reduction=reduction)
        torch.testing.assert_close(
            criterion(pred, target, torch.where(index == 2, far, index)),
            criterion(pred, target, index))
    if far > 10**6:
        with pytest.raises(ValueError, match='groups'):
            RankingLoss(reduction='none')(pred, target, index + (far - 10))


@pytest.mark.parametrize('dtype', [torch.bool, torch.int8])
def test_integer_targets(dtype):
    pred, target, edge_label_index = make(levels=2)
    torch.testing.assert_close(
        RankingLoss()(pred, target.to(dtype), edge_label_index),
        RankingLoss()(pred, target, edge_label_index))


@pytest.mark.parametrize('dtype', [torch.uint16, torch.uint32, torch.uint64,
                                   torch.float8_e5m2])
def test_rare_targets(dtype):
    pred = torch.tensor([0.1, 0.2, 0.3, 0.3])
    target = torch.tensor([7, 3, 2, 1])
    index = torch.zeros(4).long()
    wanted = RankingLoss()(pred, target, index)
    if dtype == torch.uint64:
        target = torch.tensor([2**63 + 5, 3, 2, 1], dtype=dtype)
    target = target.to(dtype)
    torch.testing.assert_close(RankingLoss()(pred, target, index), wanted)


@pytest.mark.parametrize('temperature', [1e-300, 1e-46, 1e39, 1e300])
@pytest.mark.parametrize('relative', [True, False])
def test_temperatures_beyond_float32(temperature, relative):
    pred = torch.tensor([0.1, 0.2, 0.3, 0.3], requires_grad=True)
    loss = RankingLoss(temperature=temperature, relative=relative)(
        pred, torch.tensor([5.0, 3.0, 2.0, 1.0]), torch.zeros(4).long())
    loss.backward()
    assert loss.isfinite() and pred.grad.isfinite().all()


def test_numpy_numbers():
    assert RankingLoss(np.float32(0.5), np.float64(0.25)).p == 0.5


def test_compile_with_a_layer():
    torch._dynamo.reset()
    torch.manual_seed(0)
    conv, criterion = SparseGATConv(7, 4, heads=2), RankingLoss(p=0.9)
    x = torch.randn(11, 7)
    edge_index = torch.randint(11, (2, 60))
    edge_label_index = torch.randint(11, (2, 40))
    target = torch.randn(40)

    def step(x):
        h = conv(x, edge_index)
        src, dst = edge_label_index
        return criterion((h[src] * h[dst]).sum(-1), target, edge_label_index)

    compiled = torch.compile(step, fullgraph=True)
    parameters = list(conv.parameters())
    torch.testing.assert_close(compiled(x), step(x))
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x), parameters),
        torch.autograd.grad(step(x), parameters))


def test_modules_can_be_copied_and_printed():
    criterion = RankingLoss(p=0.9, weighting='uniform', process_group='world')
    text = repr(criterion)
    assert 'p=0.9' in text and "weighting='uniform'" in text
    assert "process_group='world'" in text
    for clone in (copy.deepcopy(criterion),
                  pickle.loads(pickle.dumps(criterion))):
        assert repr(clone) == text
    assert not list(criterion.parameters()) and not criterion.state_dict()


# Several processes ###########################################################


SPLITS = {
    'uneven': [0, 0, 0, 0, 1, 2, 0, 1, 0],  # the process of each source node
    'one has none': [0, 0, 0, 0, 2, 2, 0, 2, 0],
    'all on the last': 9 * [-1],
}
CRITERIA = {
    'default': {},
    'absolute': dict(relative=False, p=0.9),
    'uniform': dict(weighting='uniform'),
    'sum': dict(reduction='sum'),
}


def union():
    """What all processes know: x, target and source of 60 edges, some of
    which have the same prediction, so that the floor of the relative
    temperature, the spread of all predictions, counts."""
    torch.manual_seed(0)
    x = torch.randn(60, 3, dtype=torch.float64)
    src = torch.randint(8, (60, ))
    x[src == 1] = 5.0 * x[0]
    x[src == 2] *= 1e-6
    x[src == 3] *= 100.0
    return x, torch.randint(5, (60, )), src


def scorer():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(),
                               torch.nn.Linear(4, 1)).double()


def gradients(model):
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


def run_process(rank, size, path):
    """Writes the losses and averaged gradients of all cases."""
    dist.init_process_group('gloo', init_method=f'file://{path}/init',
                            rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=200))
    out = {}
    x, target, src = union()
    for split, owner in SPLITS.items():
        mine = torch.tensor(owner)[src] % size == rank
        for name, kwargs in CRITERIA.items():
            group = 'world' if name == 'default' else dist.group.WORLD
            criterion = RankingLoss(process_group=group, **kwargs)
            model = DistributedDataParallel(scorer())
            loss = criterion(model(x[mine]), target[mine], src[mine])
            loss.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            out[split, name] = mean / size, gradients(model)
    out['steps'] = uneven_steps(rank, size)
    dist.barrier()
    if rank == 0:
        torch.save(out, f'{path}/out.pt')
    dist.destroy_process_group()


def uneven_steps(rank, size):
    """Training where process 0 has four batches and the others one, without
    a dead-lock: those that ran out go on with no edges."""
    x, target, src = union()
    model = DistributedDataParallel(scorer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = RankingLoss(process_group='world')
    batches = step_batches(src, size)[rank]
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    for i in range(int(steps)):
        batch = batches[i] if i < len(batches) else batches[-1][:0]
        optimizer.zero_grad()
        criterion(model(x[batch]), target[batch], src[batch]).backward()
        optimizer.step()
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


def step_batches(src, size):
    lists = [(src == i).nonzero().view(-1) for i in range(8)]
    return [lists[:4]] + [[lists[4 + rank]] for rank in range(size - 1)]


@pytest.mark.parametrize('size', [2, 3])
def test_processes_equal_one_process_with_all_edges(size, tmp_path):
    # The file runs itself: pickle would have to find it as a module.
    env = {**os.environ, 'OMP_NUM_THREADS': '1',
           'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
    children = [subprocess.Popen([sys.executable, __file__, str(rank),
                                  str(size), str(tmp_path)], env=env)
                for rank in range(size)]
    try:
        assert [child.wait(timeout=300) for child in children] == size * [0]
    finally:
        for child in children:
            child.kill()
    out = torch.load(tmp_path / 'out.pt', weights_only=True)
    x, target, src = union()
    for split in SPLITS:
        for name, kwargs in CRITERIA.items():
            model = scorer()
            loss = RankingLoss(**kwargs)(model(x), target, src)
            loss.backward()
            mean, grad = out[split, name]
            torch.testing.assert_close(mean, loss.detach())
            torch.testing.assert_close(grad, gradients(model), rtol=1e-6,
                                       atol=1e-9)

    model = scorer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(4):
        batch = torch.cat([batches[i] for batches in step_batches(src, size)
                           if i < len(batches)])
        optimizer.zero_grad()
        RankingLoss()(model(x[batch]), target[batch], src[batch]).backward()
        optimizer.step()
    wanted = torch.cat([p.detach().view(-1) for p in model.parameters()])
    torch.testing.assert_close(out['steps'], wanted, rtol=1e-6, atol=1e-9)


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/init',
                            rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_one_process(process_group):
    pred, target, edge_label_index = make()
    for kwargs in ({}, dict(reduction='sum'), dict(relative=False)):
        wanted = RankingLoss(**kwargs)(pred, target, edge_label_index)
        for group in (process_group, 'world'):
            criterion = RankingLoss(process_group=group, **kwargs)
            torch.testing.assert_close(
                criterion(pred, target, edge_label_index), wanted)


def test_compile_in_a_process_group(process_group):
    torch._dynamo.reset()
    pred, target, edge_label_index = make()
    criterion = RankingLoss(process_group='world')
    actual = torch.compile(criterion, fullgraph=True)(pred, target,
                                                      edge_label_index)
    torch.testing.assert_close(actual,
                               criterion(pred, target, edge_label_index))


def test_world_before_it_is_initialized():
    pred, target, edge_label_index = make()
    criterion = RankingLoss(process_group='world')
    assert torch.equal(criterion(pred, target, edge_label_index),
                       RankingLoss()(pred, target, edge_label_index))
    pickle.loads(pickle.dumps(copy.deepcopy(criterion)))


# Bad input ###################################################################


@pytest.mark.parametrize('kwargs,error', [
    ({'p': 0.0}, ValueError),
    ({'p': 1.1}, ValueError),
    ({'p': -1}, ValueError),
    ({'p': math.nan}, ValueError),
    ({'p': '1'}, TypeError),
    ({'temperature': 0.0}, ValueError),
    ({'temperature': -0.3}, ValueError),
    ({'temperature': math.inf}, ValueError),
    ({'temperature': None}, TypeError),
    ({'relative': 1}, TypeError),
    ({'weighting': 'sqrt'}, ValueError),
    ({'reduction': 'avg'}, ValueError),
    ({'group_by': 'user'}, ValueError),
    ({'process_group': 'all'}, TypeError),
    ({'process_group': True}, TypeError),
    ({'process_group': dist.GroupMember.NON_GROUP_MEMBER}, ValueError),
], ids=str)
def test_bad_arguments(kwargs, error):
    name, = kwargs
    with pytest.raises(error, match=f"'{name}'"):
        RankingLoss(**kwargs)


PRED, TARGET = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([3.0, 1.0, 2.0])
INDEX = torch.tensor([[0, 0, 1], [2, 1, 0]])


@pytest.mark.parametrize('args,error,match', [
    ((PRED.tolist(), TARGET, INDEX), TypeError, "'pred'"),
    ((PRED.long(), TARGET, INDEX), TypeError, "'pred'"),
    ((PRED.view(1, 3), TARGET, INDEX), ValueError, "'pred'"),
    ((PRED, TARGET.tolist(), INDEX), TypeError, "'target'"),
    ((PRED, TARGET[:2], INDEX), ValueError, "'target'.*3 entries of 'pred'"),
    ((PRED, TARGET.clone().requires_grad_(), INDEX), ValueError,
     "'target'.*detach.*predictions come first"),
    ((PRED, TARGET.to(torch.cfloat), INDEX), TypeError, "'target'"),
    ((PRED, TARGET, INDEX[:, :2]), ValueError,
     "'edge_label_index'.*3 entries of 'pred'"),
    ((PRED, TARGET, INDEX.float()), TypeError, "'edge_label_index'"),
    ((PRED, TARGET, INDEX.t()), ValueError, "'edge_label_index'"),
    ((PRED, TARGET, INDEX.tolist()), TypeError, "'edge_label_index'"),
    ((PRED, TARGET, INDEX - 1), ValueError, "'edge_label_index'.*got -1"),
    ((PRED, TARGET, INDEX, 1), ValueError, "'edge_label_index'.*got 1"),
    ((PRED, TARGET, INDEX, -1), ValueError, "'dim_size'"),
    ((PRED, TARGET, INDEX, 2.0), TypeError, "'dim_size'"),
    ((PRED, TARGET, INDEX, True), TypeError, "'dim_size'"),
    ((PRED[:0], TARGET[:0], INDEX[:, :0], -1), ValueError, "'dim_size'"),
    ((PRED.to_sparse(), TARGET, INDEX), TypeError, "'pred'.*dense"),
    ((PRED, TARGET.to_sparse(), INDEX), TypeError, "'target'.*dense"),
    ((PRED, TARGET, INDEX.to_sparse()), TypeError,
     "'edge_label_index'.*dense"),
    ((torch.nested.nested_tensor([PRED]), TARGET, INDEX), TypeError,
     "'pred'.*nested"),
    ((PRED.to('meta'), TARGET.to('meta'), INDEX.to('meta')), ValueError,
     "'edge_label_index' is on device 'meta'"),
    ((PRED, TARGET.to('meta'), INDEX), ValueError, "'target' is on device"),
    ((PRED, TARGET, INDEX.to('meta')), ValueError,
     "'edge_label_index' is on device"),
], ids=str)
def test_bad_input(args, error, match):
    with pytest.raises(error, match=match):
        RankingLoss()(*args)


def test_nothing_to_sum_up():
    with pytest.raises(ValueError, match="'process_group'.*'none'"):
        RankingLoss(reduction='none', process_group='world')


if __name__ == '__main__':
    run_process(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
