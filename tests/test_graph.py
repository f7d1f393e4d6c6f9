"""All forms of a graph become the same compressed rows."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.typing import WITH_TORCH_SPARSE
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csr_tensor

from pyg_rankspmm.graph import (
    arrange,
    from_edge_index,
    group,
    infer_size,
    num_edges,
    own_value,
    restore,
    transpose,
)

needs_torch_sparse = pytest.mark.skipif(not WITH_TORCH_SPARSE,
                                        reason='needs torch_sparse')


def entries_of(csr):
    """(row, col, position) of each entry, row by row, by a plain loop."""
    out = []
    for row in range(csr.rowptr.numel() - 1):
        for k in range(int(csr.rowptr[row]), int(csr.rowptr[row + 1])):
            edge = k if csr.perm is None else int(csr.perm[k])
            out.append((row, int(csr.col[k]), edge))
    return out


def check(graph, edges, size):
    """'edges' is the list of (source, target) in the caller's order."""
    assert (graph.num_src_nodes, graph.num_dst_nodes) == size
    assert graph.num_edges == len(edges)
    for csr, rows, flip in ((graph.by_dst, size[1], True),
                            (graph.transpose().by_dst, size[0], False)):
        assert csr.rowptr.numel() == rows + 1
        assert csr.rowptr.dtype == torch.int64
        assert csr.col.dtype == torch.int32
        found = entries_of(csr)
        expected = [(j, i, e) if flip else (i, j, e)
                    for e, (i, j) in enumerate(edges)]
        # Each edge once, rows in order, and stable within a row:
        assert found == sorted(expected, key=lambda entry: (entry[0], ) + (
            () if csr.perm is None else (found.index(entry), )))
        assert sorted(found) == sorted(expected)


sizes = st.integers(1, 6)


@st.composite
def graphs(draw):
    num_src, num_dst = draw(sizes), draw(sizes)
    edges = draw(st.lists(st.tuples(st.integers(0, num_src - 1),
                                    st.integers(0, num_dst - 1)),
                          max_size=20))
    return edges, (num_src, num_dst)


def to_tensor(edges):
    return torch.tensor(edges, dtype=torch.long).view(-1, 2).t().contiguous()


@given(graphs())
@settings(deadline=None)
def test_tensor(graph):
    edges, size = graph
    out = from_edge_index(to_tensor(edges), size)
    check(out, edges, size)
    order = [e for *_, e in entries_of(out.by_dst)]
    assert order == sorted(range(len(edges)), key=lambda e: edges[e][1])


@given(graphs(), st.integers(0, 6))
@settings(deadline=None)
def test_self_loops_are_replaced(graph, num_loops):
    edges, size = graph
    num_loops = min(num_loops, *size)
    out = from_edge_index(to_tensor(edges), size, num_loops)
    kept = [(j, i, e) for e, (i, j) in enumerate(edges)
            if num_loops == 0 or i != j]
    loops = [(i, i, len(edges) + i) for i in range(num_loops)]
    expected = sorted(kept + loops, key=lambda entry: (entry[0], entry[2]))
    assert entries_of(out.by_dst) == expected
    assert out.num_edges == len(edges) + num_loops
    back = sorted((j, i, e) for i, j, e in entries_of(out.transpose().by_dst))
    assert back == sorted(expected)


@given(graphs())
@settings(deadline=None)
def test_transpose_twice(graph):
    edges, size = graph
    csr = from_edge_index(to_tensor(edges), size).by_dst
    back = transpose(transpose(csr, size[0]), size[1])
    assert sorted(entries_of(back)) == sorted(entries_of(csr))


EDGES = [(0, 2), (3, 0), (0, 0), (2, 2), (3, 2), (1, 0), (1, 1)]
SIZE = (5, 4)  # sources 4 and targets 3 are isolated


@pytest.mark.parametrize('sort_order', [None, 'row', 'col'])
@pytest.mark.parametrize('cached', [True, False])
def test_edge_index(sort_order, cached):
    edge_index = EdgeIndex(to_tensor(EDGES), sparse_size=SIZE)
    if sort_order is not None:
        edge_index = edge_index.sort_by(sort_order).values
        if cached:
            edge_index.fill_cache_()
    edges = [tuple(edge) for edge in edge_index.as_tensor().t().tolist()]
    graph = from_edge_index(edge_index, infer_size(edge_index, None, 0, 0))
    check(graph, edges, SIZE)
    if sort_order is not None:
        assert graph.by_src is not None
        assert edge_index._T_perm is not None  # nobody has to sort again


def test_undirected_edge_index():
    edges = [(0, 1), (0, 2), (1, 0), (2, 0)]
    edge_index = EdgeIndex(to_tensor(edges), sparse_size=(3, 3),
                           sort_order='row', is_undirected=True)
    check(from_edge_index(edge_index, (3, 3)), edges, (3, 3))


def test_edge_index_without_size():
    edges = sorted(EDGES)
    edge_index = EdgeIndex(to_tensor(edges), sort_order='row')
    size = infer_size(edge_index, None, *SIZE)
    check(from_edge_index(edge_index, size), edges, SIZE)


def test_edge_index_that_claims_to_be_sorted():
    edge_index = EdgeIndex(to_tensor([(4, 0), (0, 1)]), sparse_size=(3, 3),
                           sort_order='col')
    with pytest.raises(ValueError, match='edge_index'):
        from_edge_index(edge_index, (3, 3))


@needs_torch_sparse
def test_sparse_tensor():
    from torch_sparse import SparseTensor
    src, dst = to_tensor(EDGES)
    value = torch.arange(len(EDGES)).float()
    adj_t = SparseTensor(row=dst, col=src, value=value,
                         sparse_sizes=SIZE[::-1])
    row, col, value = adj_t.coo()
    edges = list(zip(col.tolist(), row.tolist()))
    assert infer_size(adj_t, None, 0, 0) == SIZE
    assert num_edges(adj_t) == len(EDGES)
    assert torch.equal(own_value(adj_t), value)
    check(from_edge_index(adj_t, SIZE), edges, SIZE)


@pytest.mark.parametrize('layout', ['coo', 'csr', 'csc', 'uncoalesced'])
def test_torch_sparse(layout):
    edges = sorted(EDGES, key=lambda edge: edge[::-1])
    value = torch.arange(len(edges)).float()
    if layout == 'uncoalesced':
        adj_t = torch.sparse_coo_tensor(to_tensor(EDGES).flip(0), value,
                                        SIZE[::-1])
        edges = EDGES
    elif layout == 'csr':
        adj_t = to_torch_csr_tensor(to_tensor(edges).flip(0), value,
                                    SIZE[::-1])
    else:
        adj_t = to_torch_coo_tensor(to_tensor(edges).flip(0), value,
                                    SIZE[::-1])
    if layout == 'csc':
        adj_t = adj_t.to_sparse_csc()
        edges = sorted(edges)
    graph = from_edge_index(adj_t, infer_size(adj_t, None, 0, 0))
    check(graph, edges, SIZE)
    assert num_edges(adj_t) == len(edges)
    values = own_value(adj_t).tolist()
    dense = adj_t.to_dense()
    assert values == [float(dense[j, i]) for i, j in edges]


def test_torch_sparse_of_an_unsupported_layout():
    adj = torch.eye(4).to_sparse_bsr((2, 2))
    with pytest.raises((TypeError, ValueError), match='edge_index'):
        from_edge_index(adj, (4, 4))


def test_no_edges_and_no_nodes():
    check(from_edge_index(to_tensor([]), (3, 2)), [], (3, 2))
    check(from_edge_index(to_tensor([]), (0, 0)), [], (0, 0))


@pytest.mark.parametrize('edges,match', [
    ([(0, 0), (5, 0)], r"edge_index\[0\].*0 to 4.*got 5"),
    ([(0, 0), (0, 4)], r"edge_index\[1\].*0 to 3.*got 4"),
    ([(0, 0), (-1, 0)], r"edge_index\[0\].*got -1"),
    ([(0, 0), (0, -7)], r"edge_index\[1\].*got -7"),
])
def test_indices_out_of_range(edges, match):
    with pytest.raises(ValueError, match=match):
        from_edge_index(to_tensor(edges), SIZE)


@pytest.mark.parametrize('edge_index,error', [
    ([[0], [1]], TypeError),
    (torch.zeros(2, 3), TypeError),
    (torch.zeros(2, 3).bool(), TypeError),
    (torch.zeros(3, 2).long(), ValueError),
    (torch.zeros(4).long(), ValueError),
    (torch.zeros(2, 2, 2).long(), ValueError),
], ids=str)
def test_wrong_types(edge_index, error):
    with pytest.raises(error, match='edge_index'):
        from_edge_index(edge_index, SIZE)


@pytest.mark.parametrize('form', ['EdgeIndex', 'csr', 'csc', 'coo'])
def test_size_that_contradicts_the_graph(form):
    edge_index = to_tensor(EDGES)
    if form == 'EdgeIndex':
        adj = EdgeIndex(edge_index, sparse_size=SIZE)
    else:
        adj = to_torch_coo_tensor(edge_index.flip(0), size=SIZE[::-1])
        adj = adj if form == 'coo' else adj.to_sparse(
            layout=getattr(torch, f'sparse_{form}'))
    with pytest.raises(ValueError, match='5 source and 4 target'):
        from_edge_index(adj, SIZE[::-1])


@given(st.lists(st.integers(0, 4), max_size=20))
def test_group(index):
    ptr, place = group(torch.tensor(index, dtype=torch.long), 5)
    number = torch.arange(len(index))
    arranged = arrange(number, place)
    for g in range(5):
        members = arranged[ptr[g]:ptr[g + 1]].tolist()
        assert members == [e for e, i in enumerate(index) if i == g]
    assert torch.equal(restore(arranged, place), number)


@pytest.mark.parametrize('dtype', [
    torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16,
    torch.bool, torch.uint8, torch.complex128
])
def test_arrange(dtype):
    x = torch.arange(100).to(dtype)
    place = torch.randperm(100)
    expected = torch.empty_like(x)
    expected[place] = x
    for dtype in (torch.int64, torch.int32):
        assert torch.equal(arrange(x, place.to(dtype)), expected)
        assert torch.equal(restore(expected, place.to(dtype)), x)


@pytest.mark.parametrize('move', [arrange, restore])
def test_arrange_gradients(move):
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    place = torch.randperm(7).int()
    assert torch.autograd.gradcheck(move, (x, place))
    assert torch.autograd.gradgradcheck(move, (x, place))


@pytest.mark.parametrize('index', [-1, 5])
def test_group_out_of_range(index):
    with pytest.raises(ValueError, match=f'index.*got {index}'):
        group(torch.tensor([0, index]), 5)


def test_operators():
    row, col = torch.tensor([2, 0, 2, 1]), torch.tensor([1, 0, 2, 1])
    ops = torch.ops.pyg_rankspmm
    for num_loops in (2, 0):
        torch.library.opcheck(ops.csr.default, (row, col, 3, 3, num_loops))
        csr = ops.csr(row, col, 3, 3, num_loops)
        torch.library.opcheck(ops.transpose.default, (*csr, 3))
    rowptr, col, _ = csr
    torch.library.opcheck(ops.compress.default, (rowptr, col, 3))
    torch.library.opcheck(ops.transpose.default, (rowptr, col, None, 3))
    torch.library.opcheck(ops.group.default, (row, 3))
    place = ops.group(row, 3)[1]
    x = torch.randn(4, requires_grad=True)
    torch.library.opcheck(ops.arrange.default, (x, place))
    torch.library.opcheck(ops.restore.default, (x, place))
