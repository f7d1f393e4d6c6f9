"""SourceNodeSampler against what it promises, and inside PyG's loaders."""
import io
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.sampler import (
    HeteroSamplerOutput,
    NeighborSampler,
    SamplerOutput,
)
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_rankspmm import RankingLoss
from pyg_rankspmm.loader import SourceNodeSampler

RATES = ('user', 'rates', 'movie')
needs_torch_sparse = pytest.mark.skipif(
    not WITH_TORCH_SPARSE, reason='neighbor sampling needs torch_sparse')


def make(num_edges=200, num_sources=23, seed=0):
    """Sources of many edges and of few, some of none, in any order."""
    g = torch.Generator().manual_seed(seed)
    src = (num_sources * torch.rand(num_edges, generator=g)**2).long()
    return torch.stack([3 * src, torch.randint(50, (num_edges, ),
                                               generator=g)])


def epoch(num_replicas=1, epoch=0, **kwargs):
    """The batches of all processes."""
    out = []
    for rank in range(num_replicas):
        sampler = SourceNodeSampler(num_replicas=num_replicas, rank=rank,
                                    **kwargs)
        sampler.set_epoch(epoch)
        out.append(list(sampler))
        assert len(sampler) == len(out[-1])
    return out


# What it promises ############################################################


@st.composite
def configurations(draw):
    num_sources = draw(st.integers(1, 30))
    degrees = draw(st.lists(st.integers(1, 40), min_size=num_sources,
                            max_size=num_sources))
    src = torch.arange(num_sources).repeat_interleave(torch.tensor(degrees))
    order = torch.Generator().manual_seed(draw(st.integers(0, 5)))
    src = src[torch.randperm(src.numel(), generator=order)]
    limit = st.none() | st.integers(1, 60)
    batch_size, max_edges = draw(limit), draw(limit)
    if batch_size is None and max_edges is None:
        max_edges = draw(st.integers(1, 60))
    return dict(
        edge_label_index=7 * src, batch_size=batch_size, max_edges=max_edges,
        max_list_length=draw(st.none() | st.integers(1, 30)),
        shuffle=draw(st.booleans()), drop_last=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        num_replicas=draw(st.integers(1, min(4, num_sources))))


@given(configurations(), st.integers(0, 3))
def test_promises(config, number):
    src = config['edge_label_index']
    ranks = epoch(epoch=number, **config)
    batches = sum(ranks, [])

    # The same number of batches for each process, in each epoch.
    assert len({len(rank) for rank in ranks}) == 1
    assert len(ranks[0]) == len(epoch(epoch=number + 1, **config)[0])

    # Each edge once, unless something is dropped.
    drawn = Counter(sum(batches, []))
    assert max(drawn.values(), default=1) == 1
    if not config['drop_last']:
        assert len(drawn) == src.numel()

    # Each list whole.
    degree = Counter(src.tolist())
    longest = config['max_list_length'] or src.numel()
    num_lists = sum(-(-n // longest) for n in degree.values())
    for batch in batches:
        for source, n in Counter(src[batch].tolist()).items():
            if degree[source] <= longest:
                assert n == degree[source]
        if config['max_list_length'] is None:
            assert (config['batch_size'] is None
                    or len(set(src[batch].tolist())) <= config['batch_size'])
        if config['max_edges'] is not None:
            assert (len(batch) <= config['max_edges']
                    or len(set(src[batch].tolist())) == 1)
    if num_lists >= len(batches):
        assert all(batches)  # none of them empty

    # About the same number of edges for each process.
    size = [[len(batch) for batch in rank] for rank in ranks]
    if batches:
        assert (max(map(sum, size)) - min(map(sum, size))
                <= max(map(len, batches)))


@given(configurations())
def test_resumes_anywhere(config):
    config = dict(config, rank=0)
    sampler = SourceNodeSampler(**config)
    sampler.set_epoch(2)
    whole = list(sampler)
    for done in {0, len(whole) // 2, len(whole)}:
        other = SourceNodeSampler(**config)
        other.load_state_dict(sampler.state_dict(num_batches=done))
        assert other.start == done and len(other) == len(whole)
        other.set_epoch(2)
        assert list(other) == whole[done:]
        assert list(other) == whole  # and whole again afterwards


def test_packs_by_edges():
    src = torch.arange(100).repeat_interleave(10)
    sampler = SourceNodeSampler(src, max_edges=45, shuffle=True)
    assert [len(batch) for batch in sampler] == 25 * [40]
    sampler = SourceNodeSampler(src, max_edges=45, batch_size=3)
    assert [len(batch) for batch in sampler] == 33 * [30] + [10]


def test_order():
    index = make()
    sampler = SourceNodeSampler(index, batch_size=1)
    assert [index[0, batch[0]].item() for batch in sampler] == (
        index[0].unique().tolist())
    a, b, c, d = (epoch(edge_label_index=index, max_edges=20, shuffle=True,
                        **kwargs)[0]
                  for kwargs in (dict(epoch=1), dict(epoch=1), dict(epoch=2),
                                 dict(seed=1)))
    assert a == b and a != c and a != d and c != d
    for batch in a:  # the edges of a source in the caller's order
        assert batch == sorted(batch, key=lambda e: (
            batch.index(min(e_ for e_ in batch if index[0, e_] == index[0, e])
                        ), e))


def test_seed_and_epoch_are_not_interchangeable():
    index = make()
    a, = epoch(edge_label_index=index, batch_size=1, shuffle=True, seed=1,
               epoch=0)
    b, = epoch(edge_label_index=index, batch_size=1, shuffle=True, seed=0,
               epoch=1)
    assert a != b


def test_long_lists_make_a_batch_of_their_own():
    src = torch.tensor(5 * [0] + 50 * [1] + 5 * [2] + 5 * [3])
    batches = list(SourceNodeSampler(src, max_edges=10))
    assert [sorted(set(src[b].tolist())) for b in batches] == [[0], [1],
                                                               [2, 3]]


def test_sub_lists():
    src = torch.tensor(5 * [0] + 25 * [1] + 10 * [2])
    sampler = SourceNodeSampler(src, max_edges=12, max_list_length=10)
    assert sampler.num_lists == 1 + 3 + 1
    seen = []
    for number in range(2):
        sampler.set_epoch(number)
        batches = list(sampler)
        assert sorted(sum(batches, [])) == list(range(40))
        index = sampler.list_index(torch.arange(40))
        assert index.dtype == torch.int64
        assert index.bincount().tolist() == [5, 9, 8, 8, 10]
        for group in range(5):  # all of a list is in one batch, of one source
            mine = (index == group).nonzero().view(-1).tolist()
            assert len({i for i, batch in enumerate(batches)
                        if set(batch) & set(mine)}) == 1
            assert src[mine].unique().numel() == 1
        seen.append(index)
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0][:5], torch.zeros(5).long())


@pytest.mark.parametrize('limit', [2**62, sys.maxsize, 2**63, 2**70])
@pytest.mark.parametrize('name', ['batch_size', 'max_edges',
                                  'max_list_length'])
def test_limits_beyond_any_number(name, limit):
    edges = make()
    limits = {'batch_size': 10**6, 'max_edges': 10**6, name: limit}
    batch, = SourceNodeSampler(edges, **limits)
    assert sorted(batch) == list(range(edges.size(1)))


def test_sub_lists_are_drawn_uniformly():
    """Each pair of edges of a source of 6 meets in one of the two sub-lists
    with probability 2/5."""
    src, meet = torch.zeros(6).long(), torch.zeros(6, 6)
    sampler = SourceNodeSampler(src, batch_size=1, max_list_length=3)
    for number in range(600):
        sampler.set_epoch(number)
        index = sampler.list_index(torch.arange(6))
        meet += index.view(-1, 1) == index
    pairs = meet[torch.triu(torch.ones(6, 6), 1).bool()] / 600
    assert (pairs - 0.4).abs().max() < 0.08  # four standard deviations


def test_too_few_lists_for_the_last_step():
    """Five batches of one list each for two processes."""
    src = torch.arange(5).repeat_interleave(10)
    ranks = epoch(2, edge_label_index=src, max_edges=10)
    assert [len(rank) for rank in ranks] == [3, 3]
    assert sorted(map(len, sum(ranks, []))) == [0] + 5 * [10]
    ranks = epoch(2, edge_label_index=src, max_edges=10, drop_last=True)
    assert [len(rank) for rank in ranks] == [2, 2]


def test_processes_work_on_similar_batches_at_a_time():
    index = make(20000, 1500)
    ranks = epoch(3, edge_label_index=index, max_edges=300, shuffle=True)
    total = [sum(map(len, rank)) for rank in ranks]
    # Waiting for the slowest takes less than 5 % of the time.
    slowest = sum(max(map(len, batches)) for batches in zip(*ranks))
    assert sum(total) > 0.95 * 3 * slowest
    assert max(total) - min(total) < 0.02 * sum(total)


def test_number_of_batches_is_the_same_in_each_epoch():
    """Whatever the order fits into."""
    index = make(5000, 60)
    for drop_last in (False, True):
        sampler = SourceNodeSampler(index, max_edges=400, shuffle=True,
                                    drop_last=drop_last)
        for number in range(30):
            sampler.set_epoch(number)
            batches = list(sampler)
            assert len(batches) == len(sampler)
            assert drop_last or sorted(sum(batches, [])) == list(range(5000))


def test_takes_what_pyg_has():
    index = make()
    wanted = list(SourceNodeSampler(index, batch_size=4))
    for other in (index[0], index.int(), index + 2**40, index.flip(0).flip(0),
                  EdgeIndex(index, sparse_size=(100, 100))):
        assert list(SourceNodeSampler(other, batch_size=4)) == wanted


def test_no_edges():
    for kwargs in (dict(), dict(num_replicas=2, rank=1),
                   dict(max_list_length=3, shuffle=True, drop_last=True)):
        sampler = SourceNodeSampler(torch.empty(2, 0).long(), max_edges=5,
                                    **kwargs)
        assert len(sampler) == 0 and list(sampler) == []
        assert sampler.list_index(torch.empty(0).long()).numel() == 0
        sampler.load_state_dict(sampler.state_dict())


# Checkpoints #################################################################


def test_state_dict_goes_through_a_file():
    sampler = SourceNodeSampler(make(), max_edges=20, shuffle=True, seed=7)
    sampler.set_epoch(3)
    whole, it = list(sampler), iter(sampler)
    for _ in range(4):
        next(it)
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    other = SourceNodeSampler(make(), max_edges=20, shuffle=True, seed=7)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.state_dict() == sampler.state_dict()
    assert other.epoch == 3 and list(other) == whole[4:]


def test_another_epoch_starts_at_its_beginning():
    sampler = SourceNodeSampler(make(), max_edges=20, shuffle=True)
    state = sampler.state_dict(num_batches=2)
    sampler.load_state_dict(state)
    sampler.set_epoch(1)
    assert len(list(sampler)) == len(sampler)
    sampler.load_state_dict({**state, 'num_batches': len(sampler)})
    assert list(sampler) == [] and sampler.epoch == 0


def test_an_iteration_that_was_left_does_not_count():
    sampler = SourceNodeSampler(make(), max_edges=20, shuffle=True)
    left = iter(sampler)
    next(left)
    sampler.set_epoch(1)
    next(left)
    assert sampler.state_dict()['num_batches'] == 0
    it = iter(sampler)
    next(it)
    next(left)
    assert sampler.state_dict()['num_batches'] == 1
    sampler.load_state_dict(sampler.state_dict(num_batches=2))
    next(it)
    assert sampler.state_dict()['num_batches'] == 2


@pytest.mark.parametrize('num_workers', [0, 2])
def test_resume_with_workers(num_workers):
    """Workers ask for batches ahead of time: the trainer says how many it has
    done."""
    index = make()

    def loader(state=None):
        sampler = SourceNodeSampler(index, max_edges=20, shuffle=True)
        if state is not None:
            sampler.load_state_dict(state)
        return sampler, DataLoader(range(200), batch_sampler=sampler,
                                   num_workers=num_workers)

    sampler, batches = loader()
    whole = [batch.tolist() for batch in batches]
    for i, _ in enumerate(batches, start=sampler.start):
        if i == 2:
            ahead = sampler.state_dict()['num_batches']
            state = sampler.state_dict(num_batches=i + 1)
            break
    assert (ahead > 3) == (num_workers > 0)
    sampler, batches = loader(state)
    assert [batch.tolist() for batch in batches] == whole[3:]


@pytest.mark.parametrize('change', [
    dict(max_edges=21), dict(batch_size=9), dict(max_list_length=9),
    dict(shuffle=False), dict(drop_last=True), dict(seed=1),
    dict(num_replicas=2, rank=0), dict(edge_label_index=make(201)),
    dict(edge_label_index=make(seed=1)),
], ids=str)
def test_another_configuration(change):
    config = dict(edge_label_index=make(), max_edges=20, shuffle=True)
    state = SourceNodeSampler(**config).state_dict()
    name, = set(change) - {'rank'}
    name = 'edges' if name == 'edge_label_index' else name
    with pytest.raises(ValueError, match=f"'state_dict' is .*{name}.* there"):
        SourceNodeSampler(**{**config, **change}).load_state_dict(state)


def test_a_checkpoint_serves_all_ranks():
    a, b = (SourceNodeSampler(make(), max_edges=20, num_replicas=2, rank=rank)
            for rank in (0, 1))
    whole = list(b)
    b.load_state_dict(a.state_dict(num_batches=2))
    assert list(b) == whole[2:]


# In PyG's loaders ############################################################


def bipartite(seed=0):
    """An unsorted graph of users and movies, as RandomLinkSplit leaves it."""
    torch.manual_seed(seed)
    index = make(400, 30)
    data = HeteroData()
    data['user'].x = torch.randn(90, 4)
    data['movie'].x = torch.randn(50, 3)
    data[RATES].edge_index = index
    data[RATES].edge_label = torch.arange(400.0)
    data['movie', 'rated_by', 'user'].edge_index = index.flip(0)
    train, _, _ = RandomLinkSplit(
        num_val=0.0, num_test=0.2, edge_types=[RATES],
        rev_edge_types=[('movie', 'rated_by', 'user')],
        neg_sampling_ratio=0.0, disjoint_train_ratio=0.5)(data)
    return train


def check_lists(seen, index, label):
    """Each edge arrives once, with its label, and the list of each source
    whole, under its global id."""
    assert sorted(pos for pos, _, _, _ in sum(seen, [])) == list(
        range(index.size(1)))
    where = {}
    for i, batch in enumerate(seen):
        for pos, src, dst, value in batch:
            assert (src, dst) == tuple(index[:, pos].tolist())
            assert value == label[pos]
            where.setdefault(src, set()).add(i)
    assert all(len(batches) == 1 for batches in where.values())


def rows(store, src_id, dst_id):
    return list(zip(store.input_id.tolist(),
                    src_id[store.edge_label_index[0]].tolist(),
                    dst_id[store.edge_label_index[1]].tolist(),
                    store.edge_label.tolist()))


@needs_torch_sparse
@pytest.mark.parametrize('num_workers', [0, 2])
def test_heterogeneous(num_workers):
    data = bipartite()
    store = data[RATES]
    sampler = SourceNodeSampler.from_data(data, RATES, max_edges=40,
                                          shuffle=True)
    loader = LinkNeighborLoader(
        data, num_neighbors=[3, 2],
        edge_label_index=(RATES, store.edge_label_index),
        edge_label=store.edge_label, batch_sampler=sampler,
        num_workers=num_workers)
    for number in range(2):
        sampler.set_epoch(number)
        seen = [rows(batch[RATES], batch['user'].n_id, batch['movie'].n_id)
                for batch in loader]
        assert len(seen) == len(loader) == len(sampler)
        check_lists(seen, store.edge_label_index, store.edge_label)


@needs_torch_sparse
@pytest.mark.parametrize('num_workers', [0, 2])
def test_homogeneous(num_workers):
    index = make()
    data = Data(x=torch.randn(90, 4), edge_index=make(seed=1))
    label = torch.arange(200.0)
    loader = LinkNeighborLoader(
        data, num_neighbors=[3], edge_label_index=index, edge_label=label,
        batch_sampler=SourceNodeSampler(index, batch_size=4, shuffle=True),
        num_workers=num_workers)
    seen = [rows(batch, batch.n_id, batch.n_id) for batch in loader]
    check_lists(seen, index, label)


@needs_torch_sparse
def test_an_empty_batch_goes_through_a_loader():
    data = bipartite()
    store = data[RATES]
    loader = LinkNeighborLoader(
        data, num_neighbors=[3, 2],
        edge_label_index=(RATES, store.edge_label_index),
        edge_label=store.edge_label, batch_sampler=[[], [0]])
    batch = next(iter(loader))
    assert batch[RATES].edge_label_index.shape == (2, 0)
    assert batch['user'].x.shape == (0, 4)


def test_an_empty_batch_goes_through_a_plain_loader():
    index = torch.tensor([0, 0, 0, 1, 1, 2])  # batches of 3, 2 and 1 edges
    batches = []
    for rank in range(2):
        sampler = SourceNodeSampler(index, batch_size=1, num_replicas=2,
                                    rank=rank)
        batches += DataLoader(range(6), batch_sampler=sampler,
                              collate_fn=torch.LongTensor)
    assert sorted(map(len, batches)) == [0, 1, 2, 3]
    assert all(batch.dtype == torch.long for batch in batches)


class DisjointSampler(NeighborSampler):
    """What PyG has pyg-lib do: a graph of its own for each seed, which here
    is the seed and one neighbor of it. torch_sparse cannot do that, and
    pyg-lib is hard to install; what PyG makes of the result is the same."""
    def _sample(self, seed, seed_time=None):
        if not isinstance(seed, dict):
            node, row, col, edge, batch = self._grow(
                seed, seed, self.colptr, self.row)
            return SamplerOutput(node, row, col, edge, batch)
        node, batch = dict(seed), {key: torch.arange(value.numel())
                                   for key, value in seed.items()}
        row, col, edge = {}, {}, {}
        for edge_type in self.edge_types:
            src, _, dst = edge_type
            name = self.to_rel_type[edge_type]
            args = (seed[dst], node[src], self.colptr_dict[name],
                    self.row_dict[name])
            node[src], row[edge_type], col[edge_type], edge[edge_type], new = (
                self._grow(*args))
            batch[src] = torch.cat([batch[src],
                                    new[new.numel() - edge[edge_type].numel():]
                                    ])
        return HeteroSamplerOutput(node, row, col, edge, batch)

    def _grow(self, seed, src, colptr, row):
        has = colptr[seed + 1] > colptr[seed]
        col = has.nonzero().view(-1)
        edge = colptr[seed[has]]
        node = torch.cat([src, row[edge]])
        batch = torch.cat([torch.arange(src.numel()), col])
        return node, torch.arange(src.numel(), node.numel()), col, edge, batch


@pytest.mark.parametrize('temporal', [False, True])
@pytest.mark.parametrize('hetero', [False, True])
def test_disjoint_and_temporal(hetero, temporal):
    """The same source has many local ids, but one global id."""
    torch.manual_seed(0)
    data = bipartite() if hetero else Data(
        x=torch.randn(90, 4), edge_index=make(seed=1),
        edge_label_index=make(), edge_label=torch.arange(200.0))
    store = data[RATES] if hetero else data
    index, label = store.edge_label_index, store.edge_label
    times = {}
    if temporal:
        for node_store in data.node_stores:
            node_store.time = torch.arange(node_store.num_nodes)
        times = dict(time_attr='time', edge_label_time=label.long() + 100)
    sampler = SourceNodeSampler.from_data(data, RATES if hetero else None,
                                          batch_size=4, shuffle=True)
    loader = LinkNeighborLoader(
        data, num_neighbors=[1],
        edge_label_index=(RATES, index) if hetero else index,
        edge_label=label, batch_sampler=sampler,
        neighbor_sampler=DisjointSampler(
            data, [1], disjoint=not temporal,
            time_attr='time' if temporal else None), **times)
    criterion, seen = RankingLoss(reduction='sum'), []
    pred, total = torch.randn(index.size(1)), 0.0
    for batch in loader:
        mine = batch[RATES] if hetero else batch
        user, movie = ((batch['user'], batch['movie']) if hetero
                       else (batch, batch))
        local = mine.edge_label_index[0]
        assert local.unique().numel() == local.numel()  # no list at all
        assert user.batch is not None
        seen.append(rows(mine, user.n_id, movie.n_id))
        total += criterion(pred[mine.input_id], mine.edge_label,
                           user.n_id[local])
    check_lists(seen, index, label)
    floor = RankingLoss(reduction='sum')  # the floor of the temperature
    torch.testing.assert_close(total, floor(pred, label, index), rtol=1e-4,
                               atol=1e-4)


# Bad input ###################################################################


INDEX = torch.tensor([[0, 0, 1, 2], [2, 1, 0, 0]])


@pytest.mark.parametrize('kwargs,error,match', [
    (dict(), ValueError, "'batch_size' or 'max_edges' must be given"),
    (dict(max_edges=0), ValueError, "'max_edges' must be at least 1.*got 0"),
    (dict(batch_size=0), ValueError, "'batch_size' must be at least 1"),
    (dict(batch_size=-1), ValueError, "'batch_size'.*-1"),
    (dict(batch_size=2.0), TypeError, "'batch_size'.*2.0"),
    (dict(batch_size=True), TypeError, "'batch_size'"),
    (dict(batch_size=1, max_list_length=0), ValueError, "'max_list_length'"),
    (dict(batch_size=1, shuffle=1), TypeError, "'shuffle'"),
    (dict(batch_size=1, drop_last=None), TypeError, "'drop_last'"),
    (dict(batch_size=1, seed=-1), ValueError, "'seed'"),
    (dict(batch_size=1, num_replicas=0), ValueError, "'num_replicas'"),
    (dict(batch_size=1, num_replicas=2, rank=2), ValueError,
     "'rank' must be below the 'num_replicas' of 2 .got 2"),
    (dict(batch_size=1, rank=1), ValueError, "'rank'"),
    (dict(batch_size=1, num_replicas=4, rank=0), ValueError,
     "'num_replicas' must not exceed.* 3, .*got 4"),
    (dict(batch_size=1, edge_label_index=INDEX.float()), TypeError,
     "'edge_label_index'"),
    (dict(batch_size=1, edge_label_index=INDEX.tolist()), TypeError,
     "'edge_label_index'"),
    (dict(batch_size=1, edge_label_index=INDEX.t()), ValueError,
     "'edge_label_index' must have shape"),
    (dict(batch_size=1, edge_label_index=INDEX - 1), ValueError,
     "'edge_label_index' must not be negative"),
], ids=str)
def test_bad_arguments(kwargs, error, match):
    with pytest.raises(error, match=match):
        SourceNodeSampler(**{'edge_label_index': INDEX, **kwargs})


def test_it_prints_its_settings():
    text = repr(SourceNodeSampler(torch.tensor([0, 0, 3]), max_edges=4))
    assert text.startswith('SourceNodeSampler(2 lists, batch_size=None, max_e')


def test_bad_calls():
    sampler = SourceNodeSampler(INDEX, batch_size=1)
    for value, error in ((-1, ValueError), (0.5, TypeError),
                         (None, TypeError)):
        with pytest.raises(error, match="'epoch'"):
            sampler.set_epoch(value)
    for value, error in ((4, ValueError), (-1, ValueError), ('1', TypeError)):
        with pytest.raises(error, match="'num_batches'"):
            sampler.state_dict(num_batches=value)
    state = sampler.state_dict()
    for bad in (None, {}, {'epoch': 0}, {**state, 'num_batches': 4},
                {**state, 'epoch': -1}, {**state, 'config': None}):
        with pytest.raises(ValueError, match="'(state_dict|num_b|epoch)"):
            sampler.load_state_dict(bad)
    for bad in (torch.tensor([4]), torch.tensor([-1])):
        with pytest.raises(ValueError, match="'input_id'.*4 edges"):
            sampler.list_index(bad)
    with pytest.raises(TypeError, match="'input_id'"):
        sampler.list_index([0])


def test_bad_data():
    data = bipartite()
    for edge_type in (('user', 'likes', 'movie'), None, 'rates'):
        with pytest.raises(ValueError, match="'edge_type' must be one of.*"
                           "'rates'.*got"):
            SourceNodeSampler.from_data(data, edge_type, batch_size=1)
    with pytest.raises(ValueError, match="no 'edge_label_index'"):
        SourceNodeSampler.from_data(data, ('movie', 'rated_by', 'user'),
                                    batch_size=1)
    with pytest.raises(TypeError, match="'data'"):
        SourceNodeSampler.from_data(INDEX, batch_size=1)
    graph = Data(num_nodes=2, edge_label_index=INDEX)
    with pytest.raises(ValueError, match="'edge_type' must be None"):
        SourceNodeSampler.from_data(graph, RATES, batch_size=1)
    with pytest.raises(ValueError, match="'edge_label_index'.*got 2"):
        SourceNodeSampler.from_data(graph, batch_size=1)
    graph.num_nodes = 3
    assert len(SourceNodeSampler.from_data(graph, batch_size=1)) == 3
