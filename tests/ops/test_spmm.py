"""Products with a sparse matrix against the dense ones."""
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex
from torch_geometric.typing import WITH_TORCH_SPARSE
from torch_geometric.utils import to_torch_coo_tensor

import pyg_rankspmm
from pyg_rankspmm import SpecialSpmm, sddmm, spmm
from pyg_rankspmm.graph import from_edge_index

NUM_SRC, NUM_DST, NUM_EDGES = 6, 4, 15


def make_graph():
    torch.manual_seed(1)
    return torch.stack([torch.randint(NUM_SRC, (NUM_EDGES, )),
                        torch.randint(NUM_DST - 1, (NUM_EDGES, ))])


def randn(*size, dtype=torch.float64):
    return torch.randn(size, dtype=dtype, requires_grad=True)


def dense(edge_index, value):
    """The matrix of shape [targets, sources] (and heads)."""
    out = value.new_zeros((NUM_DST, NUM_SRC) + value.shape[1:])
    return out.index_put((edge_index[1], edge_index[0]), value,
                         accumulate=True)


SHAPES = {
    'plain': ((NUM_EDGES, ), (NUM_SRC, 3), 'ij,jc->ic'),
    'one column': ((NUM_EDGES, ), (NUM_SRC, 1), 'ij,jc->ic'),
    'no column': ((NUM_EDGES, ), (NUM_SRC, 0), 'ij,jc->ic'),
    'heads': ((NUM_EDGES, 2), (NUM_SRC, 2, 3), 'ijh,jhc->ihc'),
    'one value for all heads': ((NUM_EDGES, ), (NUM_SRC, 2, 3),
                                'ij,jhc->ihc'),
}


@pytest.mark.parametrize('value_shape,x_shape,product', SHAPES.values(),
                         ids=SHAPES)
def test_spmm(value_shape, x_shape, product):
    edge_index, value, x = make_graph(), randn(*value_shape), randn(*x_shape)
    size = (NUM_SRC, NUM_DST)
    out = spmm(edge_index, value, x, size)
    expected = torch.einsum(product, dense(edge_index, value), x)
    torch.testing.assert_close(out, expected)

    grad = torch.randn_like(out)
    actual = torch.autograd.grad(out, (value, x), grad)
    expected = torch.autograd.grad(expected, (value, x), grad)
    torch.testing.assert_close(actual, expected)

    if x.numel() > 0:
        assert gradcheck(lambda *a: spmm(edge_index, *a, size), (value, x))
        assert gradgradcheck(lambda *a: spmm(edge_index, *a, size), (value, x))


@pytest.mark.parametrize('heads', [(), (2, )])
def test_sddmm(heads):
    edge_index = make_graph()
    g, x = randn(NUM_DST, *heads, 3), randn(NUM_SRC, *heads, 3)
    expected = (g[edge_index[1]] * x[edge_index[0]]).sum(-1)
    torch.testing.assert_close(sddmm(edge_index, g, x), expected)
    assert gradcheck(lambda *a: sddmm(edge_index, *a), (g, x))
    assert gradgradcheck(lambda *a: sddmm(edge_index, *a), (g, x))


@pytest.mark.parametrize('needs', [(True, False), (False, True)])
def test_gradient_of_one_operand(needs):
    edge_index, size = make_graph(), (NUM_SRC, NUM_DST)
    value = randn(NUM_EDGES).detach().requires_grad_(needs[0])
    x = randn(NUM_SRC, 3).detach().requires_grad_(needs[1])
    spmm(edge_index, value, x, size).sum().backward()
    assert (value.grad is not None, x.grad is not None) == needs


def test_without_value():
    edge_index, x = make_graph(), randn(NUM_SRC, 3)
    ones = torch.ones(NUM_EDGES, dtype=torch.float64)
    out = spmm(edge_index, None, x, (NUM_SRC, NUM_DST))
    torch.testing.assert_close(out, dense(edge_index, ones) @ x)
    assert gradcheck(
        lambda x: spmm(edge_index, None, x, (NUM_SRC, NUM_DST)), (x, ))


@pytest.mark.parametrize('form', ['EdgeIndex', 'coo', 'csr', 'csc',
                                  'SparseTensor'])
def test_forms(form):
    edge_index = torch.unique(make_graph().flip(0), dim=1).flip(0)
    edge_index = edge_index.contiguous()
    num_edges = edge_index.size(1)
    value, x = randn(num_edges), randn(NUM_SRC, 3)
    adj = to_torch_coo_tensor(edge_index.flip(0), value, (NUM_DST, NUM_SRC))
    if form == 'EdgeIndex':
        adj = EdgeIndex(edge_index, sparse_size=(NUM_SRC, NUM_DST),
                        sort_order='col')
    elif form == 'SparseTensor':
        if not WITH_TORCH_SPARSE:
            pytest.skip('needs torch_sparse')
        from torch_sparse import SparseTensor
        adj = SparseTensor(row=edge_index[1], col=edge_index[0], value=value,
                           sparse_sizes=(NUM_DST, NUM_SRC))
    elif form != 'coo':
        adj = adj.to_sparse(layout=getattr(torch, f'sparse_{form}'))

    expected = dense(edge_index, value) @ x
    if form != 'EdgeIndex':  # a matrix has values of its own
        torch.testing.assert_close(spmm(adj, None, x), expected)
    order = torch.arange(num_edges)
    if form == 'csc':
        order = torch.argsort(edge_index[0], stable=True)
    torch.testing.assert_close(spmm(adj, value[order], x), expected)
    g = randn(NUM_DST, 3)
    torch.testing.assert_close(sddmm(adj, g, x),
                               sddmm(edge_index, g, x)[order])


@pytest.mark.parametrize('form', ['coo', 'csr', 'SparseTensor'])
def test_gradient_of_the_values_of_a_matrix(form):
    edge_index = torch.unique(make_graph().flip(0), dim=1).flip(0)
    value, x = randn(edge_index.size(1)), randn(NUM_SRC, 3)
    if form == 'SparseTensor':
        if not WITH_TORCH_SPARSE:
            pytest.skip('needs torch_sparse')
        from torch_sparse import SparseTensor
        adj = SparseTensor(row=edge_index[1], col=edge_index[0], value=value,
                           sparse_sizes=(NUM_DST, NUM_SRC))
    else:
        adj = to_torch_coo_tensor(edge_index.flip(0), value,
                                  (NUM_DST, NUM_SRC))
        if form == 'csr':
            adj = adj.to_sparse_csr()
    grad, = torch.autograd.grad((spmm(adj, None, x)**2).sum(), value)
    expected, = torch.autograd.grad(
        ((dense(edge_index, value) @ x)**2).sum(), value)
    torch.testing.assert_close(grad, expected)


def test_default_size_is_square():
    edge_index = torch.tensor([[0, 1], [4, 4]])
    assert spmm(edge_index, None, torch.ones(5, 2)).shape == (5, 2)
    with pytest.raises(ValueError, match='got 4'):
        spmm(edge_index, None, torch.ones(4, 2))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype):
    # 1 + 2^-12 + 2^-12 + ... would stay 1 in half precision.
    edge_index = torch.stack([torch.arange(4097), torch.zeros(4097).long()])
    x = torch.full((4097, 1), 2.0**-12, dtype=dtype)
    x[0] = 1.0
    value = torch.ones(4097, dtype=dtype)
    out = spmm(edge_index, value, x, size=(4097, 1))
    assert out.dtype == dtype
    assert out.item() == 2.0
    g = torch.ones(1, 4097, dtype=dtype)
    assert sddmm(torch.tensor([[0], [0]]), g, x.t()).item() == 2.0


def test_mixed_dtypes_are_promoted():
    edge_index = torch.tensor([[0, 1], [1, 0]])
    out = spmm(edge_index, torch.ones(2, dtype=torch.float64),
               torch.ones(2, 2))
    assert out.dtype == torch.float64


def test_no_entries():
    edge_index = torch.empty(2, 0, dtype=torch.long)
    value, x = randn(0), randn(3, 2)
    out = spmm(edge_index, value, x, (3, 5))
    assert out.shape == (5, 2) and not out.any()
    out.sum().backward()
    assert value.grad.shape == (0, ) and not x.grad.any()
    assert sddmm(edge_index, randn(5, 2), x).shape == (0, )


def test_non_contiguous():
    edge_index = make_graph().t().contiguous().t()
    value, x = randn(NUM_EDGES, 2)[:, 0], randn(3, NUM_SRC).t()
    torch.testing.assert_close(
        spmm(edge_index, value, x, (NUM_SRC, NUM_DST)),
        dense(edge_index, value) @ x)


# pyGAT's module ##############################################################


class PyGAT(torch.autograd.Function):
    """The function that many projects have copied, for square matrices."""
    @staticmethod
    def forward(ctx, indices, values, shape, b):
        a = torch.sparse_coo_tensor(indices, values, shape)
        ctx.save_for_backward(a, b)
        ctx.N = shape[0]
        return torch.matmul(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a_dense = grad_output.matmul(b.t())
        edge_idx = a._indices()[0, :] * ctx.N + a._indices()[1, :]
        grad_values = grad_a_dense.view(-1)[edge_idx]
        return None, grad_values, None, a.t().matmul(grad_output)


def test_special_spmm():
    torch.manual_seed(1)
    indices = torch.randint(5, (2, 12))
    values, b = randn(12), randn(5, 3)
    out = SpecialSpmm()(indices, values, torch.Size([5, 5]), b)
    expected = PyGAT.apply(indices, values, torch.Size([5, 5]), b)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, (values, b), grad),
        torch.autograd.grad(expected, (values, b), grad))


def test_special_spmm_rectangular():
    indices = torch.tensor([[0, 0, 2, 2], [0, 1, 1, 4]])
    values, b = randn(4), randn(5, 3)

    def run(values, b):
        return SpecialSpmm()(indices, values, (3, 5), b)

    a = torch.zeros(3, 5, dtype=torch.float64)
    a = a.index_put((indices[0], indices[1]), values)
    torch.testing.assert_close(run(values, b), a @ b)
    assert gradcheck(run, (values, b))


@pytest.mark.parametrize('args,error,match', [
    ((torch.zeros(2, 1), torch.ones(1), (2, 2), torch.ones(2, 1)), TypeError,
     'indices'),
    ((torch.zeros(2, 1).long(), torch.ones(2), (2, 2), torch.ones(2, 1)),
     ValueError, 'value'),
    ((torch.zeros(2, 1).long(), torch.ones(1), (2, 2), torch.ones(3, 1)),
     ValueError, "'b'"),
    ((torch.zeros(2, 1).long(), torch.ones(1), (2, -2), torch.ones(3, 1)),
     ValueError, "'shape'"),
    ((torch.tensor([[2], [0]]), torch.ones(1), (2, 2), torch.ones(2, 1)),
     ValueError, 'got 2'),
], ids=str)
def test_special_spmm_bad_input(args, error, match):
    with pytest.raises(error, match=match):
        SpecialSpmm()(*args)


# The operators ###############################################################


@pytest.mark.parametrize('num_loops', [0, 2])
@pytest.mark.parametrize('heads', [(), (2, )])
def test_opcheck(heads, num_loops):
    graph = from_edge_index(make_graph(), (NUM_SRC, NUM_DST), num_loops)
    value, x = randn(NUM_EDGES + num_loops, *heads), randn(NUM_SRC, *heads, 3)
    ops = torch.ops.pyg_rankspmm
    by_both = (*graph.by_dst, *graph.transpose().by_dst)
    for operands in (graph.operands(), by_both):
        torch.library.opcheck(ops.spmm.default, (*operands, value, x))
        torch.library.opcheck(ops.spmm.default, (*operands, None, x))
        torch.library.opcheck(ops.sddmm.default,
                              (*operands, randn(NUM_DST, *heads, 3), x))


def test_forward_mode_is_refused():
    edge_index, value, x = make_graph(), randn(NUM_EDGES), randn(NUM_SRC, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(value.detach(), torch.ones_like(value))
        with pytest.raises(NotImplementedError, match='forward-mode'):
            spmm(edge_index, dual, x, (NUM_SRC, NUM_DST))
        spmm(edge_index, value, x, (NUM_SRC, NUM_DST))  # no tangent in there
    with pytest.raises(NotImplementedError, match='torch.func|forward-mode'):
        torch.func.jvp(
            lambda v: spmm(edge_index, v, x.detach(), (NUM_SRC, NUM_DST)),
            (value.detach(), ), (torch.ones(NUM_EDGES).double(), ))


def test_compile():
    torch._dynamo.reset()
    edge_index, value, x = make_graph(), randn(NUM_EDGES), randn(NUM_SRC, 3)

    def loss(edge_index, value, x):
        return (spmm(edge_index, value, x, (NUM_SRC, NUM_DST))**2).sum()

    compiled = torch.compile(loss, fullgraph=True)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(edge_index, value, x), (value, x)),
        torch.autograd.grad(loss(edge_index, value, x), (value, x)))


def test_checkpointing():
    edge_index, value, x = make_graph(), randn(NUM_EDGES), randn(NUM_SRC, 3)
    g = randn(NUM_DST, 3)

    def loss(value, x, g):
        out = spmm(edge_index, value, x, (NUM_SRC, NUM_DST))
        return out.square().sum() + sddmm(edge_index, g, x).square().sum()

    expected = torch.autograd.grad(loss(value, x, g), (value, x, g))
    checkpoint(loss, value, x, g, use_reentrant=False).backward()
    torch.testing.assert_close((value.grad, x.grad, g.grad), expected)


def test_memory_follows_the_edges():
    # Far more nodes than a matrix of nodes x nodes could hold.
    num_nodes = 1_000_000
    edge_index = torch.randint(num_nodes, (2, 1000))
    value, x = randn(1000), randn(num_nodes, 2)
    spmm(edge_index, value, x).sum().backward()
    torch.testing.assert_close(value.grad,
                               x[edge_index[0]].sum(-1).detach())


MEMORY = """
import resource
import torch
from pyg_rankspmm import spmm

torch.manual_seed(0)
edge_index = torch.randint(110_000, (2, 860_000))
value = torch.randn(860_000, requires_grad=True)
x = torch.randn(110_000, 200, requires_grad=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
spmm(edge_index, value, x).sum().backward()
assert value.grad is not None and x.grad is not None
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def test_memory_of_a_matrix_that_pygat_cannot_hold():
    # Its gradient takes 110,000 x 110,000 numbers: 45 GB.
    pytest.importorskip('resource')
    root = Path(pyg_rankspmm.__file__).parents[1]
    out = subprocess.run([sys.executable, '-c', MEMORY], check=True, cwd=root,
                         capture_output=True, text=True)
    assert int(out.stdout) < 2e9


# Bad input ###################################################################


EDGE_INDEX = torch.tensor([[0, 1], [1, 0]])


@pytest.mark.parametrize('value,x,size,error,match', [
    (torch.ones(3), torch.ones(2, 1), None, ValueError, "'value'.*2 entries"),
    (torch.ones(2, 2), torch.ones(2, 1), None, ValueError, "'value'"),
    (torch.ones(2, 3), torch.ones(2, 2, 1), None, ValueError, "'value'"),
    (torch.ones(()), torch.ones(2, 1), None, ValueError, "'value'"),
    (torch.ones(2).long(), torch.ones(2, 1), None, TypeError, "'value'"),
    ([1.0, 2.0], torch.ones(2, 1), None, TypeError, "'value'"),
    (torch.ones(2), torch.ones(2), None, ValueError, "'x'"),
    (torch.ones(2), torch.ones(2, 1).long(), None, TypeError, "'x'"),
    (torch.ones(2), torch.ones(2, 1, dtype=torch.cfloat), None, TypeError,
     "'x'"),
    (torch.ones(2), torch.ones(3, 1), (2, 2), ValueError, "'x'"),
    (torch.ones(2), torch.ones(2, 1), (2, ), ValueError, "'size'"),
    (torch.ones(2), torch.ones(2, 1), (2, 1), ValueError, 'got 1'),
    (torch.ones(2, device='meta'), torch.ones(2, 1), None, ValueError,
     "'value' is on device"),
    (torch.ones(2), torch.ones(2, 1, device='meta'), None, ValueError,
     'device'),
    (torch.ones(2), torch.ones(2, 1).to_sparse(), None, TypeError,
     "'x'.*dense"),
    (torch.ones(2).to_sparse(), torch.ones(2, 1), None, TypeError,
     "'value'.*dense"),
    (None, torch.ones(2, 1).to(torch.float8_e5m2), None, TypeError,
     "'x'.*float8"),
], ids=str)
def test_spmm_bad_input(value, x, size, error, match):
    with pytest.raises(error, match=match):
        spmm(EDGE_INDEX, value, x, size)


@pytest.mark.parametrize('g,x,error,match', [
    (torch.ones(2, 3), torch.ones(2, 4), ValueError, "'g' and 'x'"),
    (torch.ones(2, 3).long(), torch.ones(2, 3), TypeError, "'g'"),
    (torch.ones(1, 3), torch.ones(2, 3), ValueError, 'got 1'),
    (torch.ones(2, 3, device='meta'), torch.ones(2, 3), ValueError, 'device'),
], ids=str)
def test_sddmm_bad_input(g, x, error, match):
    with pytest.raises(error, match=match):
        sddmm(EDGE_INDEX, g, x)


def test_uncoalesced_values_have_no_gradient():
    adj = torch.sparse_coo_tensor(EDGE_INDEX, torch.ones(2), (2, 2),
                                  requires_grad=True)
    with pytest.raises(ValueError, match='coalesce'):
        spmm(adj, None, torch.ones(2, 1))
