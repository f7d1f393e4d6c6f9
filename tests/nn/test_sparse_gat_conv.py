"""SparseGATConv has the numbers of PyG's GATConv, and of nothing else."""
import copy
import io
import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Optional

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GATConv, HeteroConv, Linear, to_hetero
from torch_geometric.nn.aggr import MaxAggregation
from torch_geometric.typing import WITH_TORCH_SPARSE, OptTensor
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csr_tensor

import pyg_rankspmm
from pyg_rankspmm import SparseGATConv

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
DTYPES = list(TOLERANCE)


def assert_close(actual, expected, dtype):
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance,
                               atol=tolerance)


def make_pair(*args, dtype=torch.float64, **kwargs):
    """A GATConv and a SparseGATConv with the same parameters."""
    torch.manual_seed(12)
    expected = GATConv(*args, **kwargs)
    actual = SparseGATConv(*args, **kwargs)
    # A bias of zeros would hide a bias that is forgotten.
    if expected.bias is not None:
        torch.nn.init.normal_(expected.bias)
    actual.load_state_dict(expected.state_dict())
    return actual.to(dtype), expected.to(dtype)


def random_edges(num_src, num_dst, num_edges=60):
    """Unsorted, with duplicates, self-loops and isolated nodes."""
    src = torch.randint(num_src, (num_edges, ))
    dst = torch.randint(max(1, num_dst - 1), (num_edges, ))
    loop = torch.arange(min(num_src, num_dst, 3))
    edge_index = torch.stack([torch.cat([src, loop, src[:5]]),
                              torch.cat([dst, loop, dst[:5]])])
    return edge_index[:, torch.randperm(edge_index.size(1))]


def run(conv, x, edge_index, *args, **kwargs):
    """Output and all gradients, of parameters and inputs."""
    leaves = [t for t in (x if isinstance(x, tuple) else (x, ))
              if t is not None]
    leaves += [t for t in args if isinstance(t, torch.Tensor)]
    leaves = [t.detach().requires_grad_() for t in leaves]
    rest = iter(leaves)
    if isinstance(x, tuple):
        x = tuple(None if t is None else next(rest) for t in x)
    else:
        x = next(rest)
    args = [next(rest) if isinstance(t, torch.Tensor) else t for t in args]

    conv.zero_grad()
    out = conv(x, edge_index, *args, **kwargs)
    y = out[0] if isinstance(out, tuple) else out
    y = y.sum(0) if not isinstance(y, torch.Tensor) else y
    loss = (y * torch.arange(y.numel()).view_as(y).cos()).sum()
    loss.backward()
    grads = {name: p.grad for name, p in conv.named_parameters()}
    grads.update({f'input {i}': t.grad for i, t in enumerate(leaves)})
    return out, grads


def assert_parity(pair, x, edge_index, *args, dtype=torch.float64, **kwargs):
    out, grads = run(pair[0], x, edge_index, *args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # PyG's own, about sparse CSR
        expected, expected_grads = run(pair[1], x, edge_index, *args, **kwargs)
    assert_close(out, expected, dtype)
    assert grads.keys() == expected_grads.keys()
    for name, grad in expected_grads.items():
        if grad is None:
            assert grads[name] is None or not grads[name].any(), name
        elif grads[name] is None:
            assert not grad.any(), name
        else:
            assert_close(grads[name], grad, dtype)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('concat', [True, False])
@pytest.mark.parametrize('heads', range(1, 9))
def test_heads(heads, concat, dtype):
    pair = make_pair(7, 5, heads=heads, concat=concat, dtype=dtype)
    x = torch.randn(11, 7, dtype=dtype)
    assert_parity(pair, x, random_edges(11, 11), dtype=dtype)


OPTIONS = [
    dict(zip(('add_self_loops', 'residual', 'bias', 'edge_dim', 'concat'), c))
    for c in itertools.product([True, False], [True, False], [True, False],
                               [None, 3], [True, False])
]


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_options(options, dtype):
    pair = make_pair(7, 5, heads=2, dtype=dtype, **options)
    x = torch.randn(11, 7, dtype=dtype)
    edge_index = random_edges(11, 11)
    edge_attr = []
    if options['edge_dim'] is not None:
        edge_attr = [torch.randn(edge_index.size(1), 3, dtype=dtype)]
    assert_parity(pair, x, edge_index, *edge_attr, dtype=dtype)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('options', OPTIONS, ids=str)
@pytest.mark.parametrize('num_src,num_dst,with_dst', [
    (11, 6, True),
    (6, 11, True),
    (11, 6, False),
])
def test_bipartite(num_src, num_dst, with_dst, options, dtype):
    pair = make_pair((7, 4), 5, heads=2, dtype=dtype, **options)
    x = (torch.randn(num_src, 7, dtype=dtype),
         torch.randn(num_dst, 4, dtype=dtype) if with_dst else None)
    edge_index = random_edges(num_src, num_dst)
    edge_attr = None
    if options['edge_dim'] is not None:
        edge_attr = torch.randn(edge_index.size(1), 3, dtype=dtype)
    size = None if with_dst else (num_src, num_dst)
    if not with_dst and options['add_self_loops']:
        size = None  # PyG then has as many targets as sources
    if num_dst > num_src:
        # PyG's reductions fail if there are targets without a self-loop.
        for conv in pair:
            conv.fill_value = 0.5
    assert_parity(pair, x, edge_index, edge_attr, size=size, dtype=dtype)


@pytest.mark.parametrize('size', [(11, 6), (11, 11)])
def test_size(size):
    pair = make_pair((7, 4), 5, heads=2)
    x = torch.randn(11, 7).double(), torch.randn(size[1], 4).double()
    assert_parity(pair, x, random_edges(*size), size=size)


def test_shared_projection_for_source_and_target():
    pair = make_pair(7, 5, heads=2)
    x = torch.randn(11, 7).double(), torch.randn(6, 7).double()
    assert_parity(pair, x, random_edges(11, 6))


def test_separate_projections_of_the_same_features():
    pair = make_pair((7, 7), 5, heads=2)
    assert_parity(pair, torch.randn(11, 7).double(), random_edges(11, 11))


def test_more_input_than_output_channels():
    # Here the attention vectors are not folded into the projection.
    pair = make_pair(50, 3, heads=2)
    assert_parity(pair, torch.randn(11, 50).double(), random_edges(11, 11))


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('flat', [True, False])
@pytest.mark.parametrize('fill_value', [
    'add', 'sum', 'mean', 'min', 'max', 'mul', 0.5, 2,
    torch.tensor([0.1, -0.2, 0.3]), torch.tensor(0.7)
], ids=str)
def test_fill_value(fill_value, flat, dtype):
    if flat and isinstance(fill_value, torch.Tensor) and fill_value.dim() > 0:
        fill_value = fill_value[:1]
    pair = make_pair(7, 5, heads=2, edge_dim=1 if flat else 3, dtype=dtype,
                     fill_value=fill_value)
    edge_index = random_edges(11, 11)
    shape = (edge_index.size(1), ) if flat else (edge_index.size(1), 3)
    edge_attr = torch.randn(shape, dtype=dtype)
    x = torch.randn(11, 7, dtype=dtype)
    try:
        pair[1](x, edge_index, edge_attr)
    except (RuntimeError, IndexError, ValueError):  # PyG does not take it
        with pytest.raises((RuntimeError, IndexError, ValueError)):
            pair[0](x, edge_index, edge_attr)
        return
    assert_parity(pair, x, edge_index, edge_attr, dtype=dtype)
    # Targets beyond the self-loops:
    pair = make_pair((7, 4), 5, heads=2, edge_dim=1 if flat else 3,
                     dtype=dtype, fill_value=fill_value)
    edge_index = random_edges(6, 11)
    shape = (edge_index.size(1), ) + shape[1:]
    x = torch.randn(6, 7, dtype=dtype), torch.randn(11, 4, dtype=dtype)
    if not isinstance(fill_value, str):  # PyG's reductions fail there
        assert_parity(pair, x, edge_index, torch.randn(shape, dtype=dtype),
                      dtype=dtype)


@pytest.mark.parametrize('fill_value', ['add', 'mean', 'min', 'max', 'mul'])
def test_fill_value_with_targets_that_have_no_self_loop(fill_value):
    # PyG fails here. Nodes 0 and 1 get loops; nodes 2 and 3 are only targets.
    conv, _ = make_pair((7, 4), 5, edge_dim=3, fill_value=fill_value)
    x = torch.randn(2, 7).double(), torch.randn(4, 4).double()
    edge_index = torch.tensor([[0, 0, 1, 1, 0, 1], [1, 1, 0, 1, 2, 3]])
    edge_attr = torch.randn(6, 3).double()
    reduce = {
        'add': lambda a: a.sum(0), 'mean': lambda a: a.mean(0),
        'min': lambda a: a.amin(0), 'max': lambda a: a.amax(0),
        'mul': lambda a: a.prod(0)
    }[fill_value]
    loop_attr = torch.stack([edge_attr[2], reduce(edge_attr[:2])])
    actual = conv(x, edge_index, edge_attr)
    conv.add_self_loops = False
    keep = edge_index[0] != edge_index[1]
    loops = torch.arange(2).expand(2, 2)
    expected = conv(x, torch.cat([edge_index[:, keep], loops], 1),
                    torch.cat([edge_attr[keep], loop_attr]))
    assert_close(actual, expected, torch.float64)


@pytest.mark.parametrize('edge_dim', [None, 3])
@pytest.mark.parametrize('add_self_loops', [True, False])
@pytest.mark.parametrize('bipartite', [True, False])
def test_return_attention_weights(bipartite, add_self_loops, edge_dim):
    pair = make_pair((7, 4) if bipartite else 7, 5, heads=3,
                     add_self_loops=add_self_loops, edge_dim=edge_dim)
    num_dst = 6 if bipartite else 11
    edge_index = random_edges(11, num_dst)
    x = torch.randn(11, 7).double()
    if bipartite:
        x = x, torch.randn(num_dst, 4).double()
    args = []
    if edge_dim is not None:
        args = [torch.randn(edge_index.size(1), 3).double()]
    assert_parity(pair, x, edge_index, *args, return_attention_weights=True)

    actual = pair[0](x, edge_index, *args, return_attention_weights=True)
    expected = pair[1](x, edge_index, *args, return_attention_weights=True)
    assert torch.equal(actual[1][0], expected[1][0])  # the order of edges
    assert_close(actual[1][1], expected[1][1], torch.float64)
    # Whoever asks for the weights gets the same output.
    assert_close(actual[0], pair[0](x, edge_index, *args), torch.float64)

    for conv in pair:
        conv.zero_grad()
        alpha = conv(x, edge_index, *args, return_attention_weights=True)[1][1]
        (alpha**2).sum().backward()
    for a, b in zip(pair[0].parameters(), pair[1].parameters()):
        if b.grad is not None and a.grad is not None:
            assert_close(a.grad, b.grad, torch.float64)
        else:
            assert a.grad is None or not a.grad.any()
            assert b.grad is None or not b.grad.any()


def as_edge_index(sort_order):
    def convert(edge_index, size):
        out = EdgeIndex(edge_index, sparse_size=size)
        return out if sort_order is None else out.sort_by(sort_order).values

    return convert


def as_sparse_tensor(edge_index, size):
    from torch_sparse import SparseTensor
    return SparseTensor.from_edge_index(edge_index, sparse_sizes=size).t()


def as_coo(edge_index, size):
    return to_torch_coo_tensor(edge_index.flip(0), size=size[::-1])


def as_csr(edge_index, size):
    return to_torch_csr_tensor(edge_index.flip(0), size=size[::-1])


needs_torch_sparse = pytest.mark.skipif(not WITH_TORCH_SPARSE,
                                        reason='needs torch_sparse')

FORMS = [
    pytest.param(as_edge_index(None), id='EdgeIndex'),
    pytest.param(as_edge_index('row'), id='EdgeIndex-row'),
    pytest.param(as_edge_index('col'), id='EdgeIndex-col'),
    pytest.param(as_sparse_tensor, id='SparseTensor',
                 marks=needs_torch_sparse),
    pytest.param(as_coo, id='coo'),
    pytest.param(as_csr, id='csr'),
]


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('add_self_loops', [True, False])
@pytest.mark.parametrize('bipartite', [True, False])
@pytest.mark.parametrize('return_attention_weights', [None, True])
def test_edge_forms(form, add_self_loops, bipartite,
                    return_attention_weights):
    pair = make_pair((7, 4) if bipartite else 7, 5, heads=2,
                     add_self_loops=add_self_loops)
    size = (11, 6) if bipartite else (11, 11)
    edges = torch.unique(random_edges(*size), dim=1)  # a matrix adds up twins
    edges = edges[:, torch.randperm(edges.size(1))]
    x = torch.randn(11, 7).double()
    if bipartite:
        x = x, torch.randn(6, 4).double()
    adj = form(edges, size)
    if return_attention_weights is None:
        assert_parity(pair, x, adj)
        assert_close(pair[0](x, adj), pair[0](x, edges), torch.float64)
        return
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        actual = pair[0](x, adj, return_attention_weights=True)
        expected = pair[1](x, adj, return_attention_weights=True)
    assert_close(actual[0], expected[0], torch.float64)
    if isinstance(actual[1], tuple):
        assert_close(actual[1][1], expected[1][1], torch.float64)
        assert torch.equal(dense(actual[1][0]), dense(expected[1][0]))
    else:  # SparseTensor
        assert_close(actual[1].to_dense(), expected[1].to_dense(),
                     torch.float64)


def dense(adj):
    if isinstance(adj, EdgeIndex):
        return adj.as_tensor()
    if adj.layout != torch.strided:
        index = adj.to_sparse_coo().coalesce().indices()
        return index
    return adj


@pytest.mark.parametrize('add_self_loops', [True, False])
def test_torch_sparse_csc(add_self_loops):
    # PyG refuses this layout.
    conv, _ = make_pair(7, 5, heads=2, add_self_loops=add_self_loops)
    x = torch.randn(11, 7).double()
    edges = torch.unique(random_edges(11, 11), dim=1)
    adj = as_coo(edges, (11, 11)).to_sparse_csc()
    assert_close(conv(x, adj), conv(x, edges), torch.float64)


@pytest.mark.parametrize('layout', ['coo', 'csr'])
def test_edge_features_in_a_sparse_matrix(layout):
    pair = make_pair(7, 5, heads=2, edge_dim=3, add_self_loops=False)
    x = torch.randn(11, 7).double()
    edges = torch.unique(random_edges(11, 11), dim=1)
    attr = torch.randn(edges.size(1), 3).double()
    convert = to_torch_coo_tensor if layout == 'coo' else to_torch_csr_tensor
    assert_parity(pair, x, convert(edges.flip(0), attr, size=(11, 11)))
    # A plain value is a weight to PyG, not a feature:
    assert_parity(pair, x, convert(edges.flip(0), attr[:, 0], size=(11, 11)))


@needs_torch_sparse
def test_edge_features_in_a_sparse_tensor():
    from torch_sparse import SparseTensor
    x = torch.randn(11, 7).double()
    edges = torch.unique(random_edges(11, 11), dim=1)
    attr = torch.randn(edges.size(1), 3).double()
    adj = SparseTensor.from_edge_index(edges, attr, (11, 11)).t()
    pair = make_pair(7, 5, heads=2, edge_dim=3, add_self_loops=False)
    assert_parity(pair, x, adj)
    pair = make_pair(7, 5, heads=2, edge_dim=3)
    for conv in pair:
        with pytest.raises(NotImplementedError):
            conv(x, adj)


@pytest.mark.parametrize('edge_dim', [None, 3])
@pytest.mark.parametrize('add_self_loops', [True, False])
def test_flow_target_to_source(add_self_loops, edge_dim):
    pair = make_pair(7, 5, heads=2, flow='target_to_source',
                     add_self_loops=add_self_loops, edge_dim=edge_dim)
    x = torch.randn(11, 7).double()
    edge_index = random_edges(11, 11)
    args = []
    if edge_dim is not None:
        args = [torch.randn(edge_index.size(1), 3).double()]
    assert_parity(pair, x, edge_index, *args)
    assert_parity(pair, x, edge_index, *args, return_attention_weights=True)
    for conv in pair:
        with pytest.raises(ValueError, match='target_to_source'):
            conv(x, as_coo(edge_index, (11, 11)))


@pytest.mark.parametrize('num_dst', [11, 6])
def test_flow_target_to_source_bipartite(num_dst):
    pair = make_pair((7, 4), 5, flow='target_to_source', add_self_loops=False)
    x = torch.randn(11, 7).double(), torch.randn(num_dst, 4).double()
    edge_index = random_edges(11, num_dst)
    if num_dst == 11:
        assert_parity(pair, x, edge_index)
    else:
        for conv in pair:
            with pytest.raises(IndexError):
                conv(x, edge_index)


@pytest.mark.parametrize('in_channels', [-1, (-1, -1)])
@pytest.mark.parametrize('residual', [True, False])
def test_lazy(in_channels, residual):
    kwargs = dict(heads=2, residual=residual, add_self_loops=False)
    pair = [cls(in_channels, 5, **kwargs) for cls in (SparseGATConv, GATConv)]
    x = torch.randn(11, 7), torch.randn(6, 7)
    edge_index = random_edges(11, 6)
    for conv in pair:
        conv(x, edge_index)
    assert pair[0].state_dict().keys() == pair[1].state_dict().keys()
    pair[0].load_state_dict(pair[1].state_dict())
    assert_parity(pair, x, edge_index, dtype=torch.float32)

    fresh = SparseGATConv(in_channels, 5, **kwargs)
    fresh.load_state_dict(pair[1].state_dict())
    assert_close(fresh(x, edge_index), pair[1](x, edge_index), torch.float32)


def test_lazy_does_not_compute_a_first_call_differently():
    conv = SparseGATConv(-1, 5, heads=2)
    x, edge_index = torch.randn(11, 7), random_edges(11, 11)
    assert_close(conv(x, edge_index), conv(x, edge_index), torch.float32)


@pytest.mark.parametrize('edge_index', [
    torch.empty(2, 0, dtype=torch.long),
    torch.tensor([[3], [3]]),
])
@pytest.mark.parametrize('add_self_loops', [True, False])
def test_hardly_any_edges(add_self_loops, edge_index):
    pair = make_pair(7, 5, heads=2, add_self_loops=add_self_loops)
    assert_parity(pair, torch.randn(11, 7).double(), edge_index)
    assert_parity(pair, torch.randn(4, 7).double(), edge_index,
                  return_attention_weights=True)


def test_no_nodes():
    conv = SparseGATConv(7, 5)
    out = conv(torch.randn(0, 7), torch.empty(2, 0, dtype=torch.long))
    assert out.shape == (0, 5)


@pytest.mark.parametrize('dtype', [torch.int32, torch.uint8])
@pytest.mark.parametrize('fill_value', ['mean', 'max', 0.5])
@pytest.mark.parametrize('as_form', [lambda x: x, EdgeIndex])
def test_index_dtypes(dtype, fill_value, as_form):
    if dtype == torch.uint8 and as_form is EdgeIndex:
        return  # which PyG refuses
    # (PyG's own gradients are wrong for int32.)
    conv = SparseGATConv(7, 5, edge_dim=3, fill_value=fill_value).double()
    x, edge_index = torch.randn(11, 7).double(), random_edges(11, 11)
    edge_attr = torch.randn(edge_index.size(1), 3).double()
    actual = run(conv, x, as_form(edge_index.to(dtype)), edge_attr)
    assert_close(actual, run(conv, x, edge_index, edge_attr), torch.float64)


def test_size_that_is_known_in_part():
    pair = make_pair((7, 4), 5, add_self_loops=False)
    x = torch.randn(11, 7).double(), torch.randn(6, 4).double()
    for size in ((None, 6), (11, None), (None, None)):
        assert_parity(pair, x, random_edges(11, 6), size=size)


def test_non_contiguous_input():
    pair = make_pair(7, 5, heads=2)
    x = torch.randn(7, 22).double().t()[::2]
    assert_parity(pair, x, random_edges(11, 11).t().contiguous().t())


# The models around the layer #################################################


def hetero_data():
    torch.manual_seed(3)
    data = HeteroData()
    data['user'].x, data['movie'].x = torch.randn(9, 7), torch.randn(6, 7)
    for relation, (num_src, num_dst) in {
        ('user', 'rates', 'movie'): (9, 6),
        ('movie', 'rated_by', 'user'): (6, 9),
        ('user', 'follows', 'user'): (9, 9),
    }.items():
        data[relation].edge_index = random_edges(num_src, num_dst)
    return data


def test_hetero_conv():
    data = hetero_data()
    torch.manual_seed(0)
    expected, actual = (HeteroConv({
        edge_type: cls((-1, -1), 5, heads=2,
                       add_self_loops=edge_type[0] == edge_type[2])
        for edge_type in data.edge_types
    }) for cls in (GATConv, SparseGATConv))
    expected(data.x_dict, data.edge_index_dict)
    actual(data.x_dict, data.edge_index_dict)
    actual.load_state_dict(expected.state_dict())
    assert_close(actual(data.x_dict, data.edge_index_dict),
                 expected(data.x_dict, data.edge_index_dict), torch.float32)


class Net(torch.nn.Module):
    def __init__(self, cls, in_channels=(-1, -1), **kwargs):
        super().__init__()
        self.conv1 = cls(in_channels, 5, heads=2, **kwargs)
        hidden = 10 if isinstance(in_channels, int) else (-1, -1)
        self.conv2 = cls(hidden, 4, **kwargs)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def test_to_hetero():
    data = hetero_data()
    nets = [
        to_hetero(Net(cls, add_self_loops=False), data.metadata())
        for cls in (SparseGATConv, GATConv)
    ]
    for net in nets:
        net(data.x_dict, data.edge_index_dict)
    nets[0].load_state_dict(nets[1].state_dict())
    assert_close(nets[0](data.x_dict, data.edge_index_dict),
                 nets[1](data.x_dict, data.edge_index_dict), torch.float32)


def test_explainer():
    x, edge_index = torch.randn(11, 7), random_edges(11, 11)
    masks = []
    for cls in (SparseGATConv, GATConv):
        torch.manual_seed(5)
        net = Net(cls, in_channels=7)
        explainer = Explainer(
            net, GNNExplainer(epochs=3), explanation_type='model',
            node_mask_type='attributes', edge_mask_type='object',
            model_config=dict(mode='regression', task_level='node'))
        torch.manual_seed(6)
        masks.append(explainer(x, edge_index).edge_mask)
        if cls is SparseGATConv:
            assert not net.conv1._must_see_messages()  # and back again
    assert masks[0].any()
    assert_close(masks[0], masks[1], torch.float32)


@pytest.mark.parametrize('kind', [
    'propagate_forward_pre_hook', 'propagate_forward_hook',
    'message_forward_pre_hook', 'message_forward_hook',
    'aggregate_forward_pre_hook', 'aggregate_forward_hook',
    'edge_update_forward_pre_hook', 'edge_update_forward_hook'
])
def test_message_passing_hooks(kind):
    pair = make_pair(7, 5, heads=2)
    x, edge_index = torch.randn(11, 7).double(), random_edges(11, 11)
    calls = []
    handle = getattr(pair[0], f'register_{kind}')(
        lambda *args: calls.append(args) or None)
    assert_parity(pair, x, edge_index)
    assert len(calls) == 1
    handle.remove()
    assert_parity(pair, x, edge_index)
    assert len(calls) == 1


def test_a_hook_can_change_messages():
    conv = SparseGATConv(7, 5, bias=False)
    conv.register_message_forward_hook(lambda m, args, out: 0 * out)
    assert not conv(torch.randn(11, 7), random_edges(11, 11)).any()


@pytest.mark.parametrize('method', ['message', 'edge_update', 'aggregate',
                                    'update', 'propagate'])
def test_subclass_that_overrides_a_method(method):
    calls = []

    if method == 'message':
        class Conv(SparseGATConv):
            def message(self, x_j: torch.Tensor,
                        alpha: torch.Tensor) -> torch.Tensor:
                calls.append(method)
                return alpha.unsqueeze(-1) * x_j
    elif method == 'propagate':
        class Conv(SparseGATConv):
            def propagate(self, edge_index, x, alpha, size=None):
                calls.append(method)
                return torch.zeros(11, 1, 5)
    elif method == 'update':
        class Conv(SparseGATConv):
            def update(self, inputs: torch.Tensor) -> torch.Tensor:
                calls.append(method)
                return inputs
    elif method == 'aggregate':
        class Conv(SparseGATConv):
            def aggregate(self, inputs: torch.Tensor, index: torch.Tensor,
                          ptr: OptTensor = None,
                          dim_size: Optional[int] = None) -> torch.Tensor:
                calls.append(method)
                return inputs.new_zeros(dim_size, 1, 5)
    else:
        class Conv(SparseGATConv):
            def edge_update(self, alpha_j: torch.Tensor, alpha_i: OptTensor,
                            edge_attr: OptTensor, index: torch.Tensor,
                            ptr: OptTensor,
                            dim_size: Optional[int]) -> torch.Tensor:
                calls.append(method)
                return alpha_j

    class Child(Conv):
        pass

    # (PyG replaces a 'propagate' that a subclass inherits.)
    for cls in (Conv, Child) if method != 'propagate' else (Conv, ):
        calls.clear()
        cls(7, 5)(torch.randn(11, 7), random_edges(11, 11))
        assert calls == [method]


class Tenfold:
    def message(self, x_j: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        return 10 * alpha.unsqueeze(-1) * x_j


@pytest.mark.parametrize('how', ['mixin', 'class', 'instance', 'module'])
def test_other_ways_to_change_messages(how):
    pair = []
    for base in (SparseGATConv, GATConv):
        if how == 'mixin':
            class Conv(Tenfold, base):
                pass
        else:
            class Conv(base):
                pass
        torch.manual_seed(0)
        conv = Conv(7, 5, heads=2).double()
        if how == 'class':
            Conv.message = Tenfold.message
        elif how == 'instance':
            conv.message = Tenfold.message.__get__(conv)
        elif how == 'module':
            conv.aggr_module = MaxAggregation()
        pair.append(conv)
    assert_parity(pair, torch.randn(11, 7).double(), random_edges(11, 11))


def test_subclass_that_overrides_nothing_stays_fast():
    class Conv(SparseGATConv):
        def __init__(self):
            super().__init__(7, 5)

    conv = Conv()
    assert not conv._must_see_messages()
    conv.message = lambda x_j, alpha: 0 * x_j
    assert conv._must_see_messages()


@pytest.mark.parametrize('aggr', ['add', 'sum', 'mean', 'max'])
def test_other_aggregations(aggr):
    pair = make_pair(7, 5, heads=2, aggr=aggr)
    assert_parity(pair, torch.randn(11, 7).double(), random_edges(11, 11))


def test_global_hooks():
    pair = make_pair((7, 4), 5, heads=2, edge_dim=3, add_self_loops=False)
    x = torch.randn(11, 7).double(), torch.randn(6, 4).double()
    edge_index = random_edges(11, 6)
    edge_attr = torch.randn(edge_index.size(1), 3).double()
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda m, args, out: 3 * out if type(m) is Linear else None)
    try:
        assert_parity(pair, x, edge_index, edge_attr)
    finally:
        handle.remove()


@pytest.mark.parametrize('return_attention_weights', [None, True])
@pytest.mark.parametrize('use_reentrant', [True, False])
def test_checkpointing(return_attention_weights, use_reentrant):
    conv, _ = make_pair(7, 5, heads=2, dropout=0.5)
    x = torch.randn(11, 7).double().requires_grad_()
    edge_index = random_edges(11, 11)

    def forward(x):
        out = conv(x, edge_index,
                   return_attention_weights=return_attention_weights)
        return out if return_attention_weights is None else out[0]

    torch.manual_seed(1)
    expected, = torch.autograd.grad(forward(x).square().sum(), x)
    torch.manual_seed(1)
    out = checkpoint(forward, x, use_reentrant=use_reentrant)
    out.square().sum().backward()
    assert_close(x.grad, expected, torch.float64)


def test_hooks_on_the_projection():
    pair = make_pair(7, 5, heads=2)
    for conv in pair:
        conv.lin.register_forward_hook(lambda m, args, out: out * 2)
    assert_parity(pair, torch.randn(11, 7).double(), random_edges(11, 11))


@pytest.mark.parametrize('in_channels', [7, 30])
def test_forward_that_somebody_replaced(in_channels):
    pair = make_pair(in_channels, 5, heads=2)
    for conv in pair:
        conv.lin.forward = lambda x, lin=conv.lin: 2 * x @ lin.weight.t()
    assert_parity(pair, torch.randn(11, in_channels).double(),
                  random_edges(11, 11))


def test_parametrized_projection():
    pair = make_pair(7, 5, heads=2)
    for conv in pair:
        torch.manual_seed(0)
        torch.nn.utils.parametrizations.spectral_norm(conv.lin).eval()
    assert_parity(pair, torch.randn(11, 7).double(), random_edges(11, 11))


def test_projection_that_somebody_replaced():
    pair = make_pair((7, 4), 5, heads=2, edge_dim=3, add_self_loops=False)
    for name, channels in (('lin_src', 7), ('lin_dst', 4), ('lin_edge', 3)):
        mlp = torch.nn.Sequential(torch.nn.Linear(channels, 10),
                                  torch.nn.Tanh()).double()
        for conv in pair:
            setattr(conv, name, copy.deepcopy(mlp))
    x = torch.randn(11, 7).double(), torch.randn(6, 4).double()
    edge_index = random_edges(11, 6)
    edge_attr = torch.randn(edge_index.size(1), 3).double()
    assert_parity(pair, x, edge_index, edge_attr)


@pytest.mark.parametrize('edge_dim', [None, 3])
@pytest.mark.parametrize('add_self_loops', [True, False])
def test_compile(add_self_loops, edge_dim):
    torch._dynamo.reset()
    conv = SparseGATConv(7, 5, heads=2, add_self_loops=add_self_loops,
                         edge_dim=edge_dim)
    compiled = torch.compile(copy.deepcopy(conv), fullgraph=True)
    x, edge_index = torch.randn(11, 7), random_edges(11, 11)
    args = []
    if edge_dim is not None:
        args = [torch.randn(edge_index.size(1), 3)]
    actual, grads = run(compiled, x, edge_index, *args)
    expected, expected_grads = run(conv, x, edge_index, *args)
    assert_close(actual, expected, torch.float32)
    for a, b in zip(grads.values(), expected_grads.values()):
        assert_close(a, b, torch.float32)


@pytest.mark.parametrize('add_self_loops', [True, False])
def test_compile_once_for_all_sizes(add_self_loops):
    torch._dynamo.reset()
    counter = CompileCounter()
    conv = SparseGATConv(7, 5, edge_dim=2, add_self_loops=add_self_loops)
    compiled = torch.compile(conv, backend=counter, dynamic=True,
                             fullgraph=True)
    for num_nodes, num_edges in ((20, 60), (7, 30), (50, 10), (9, 9)):
        args = (torch.randn(num_nodes, 7),
                torch.randint(num_nodes, (2, num_edges)),
                torch.randn(num_edges, 2))
        torch.testing.assert_close(compiled(*args), conv(*args))
    assert counter.frame_count == 1


def test_compile_with_dropout_is_reproducible():
    torch._dynamo.reset()
    conv = torch.compile(SparseGATConv(7, 5, dropout=0.5), fullgraph=True)
    x, edge_index = torch.randn(11, 7), random_edges(11, 11)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(conv(x, edge_index))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_deepcopy_and_pickle():
    pair = make_pair(7, 5, heads=2)
    x, edge_index = torch.randn(11, 7).double(), random_edges(11, 11)
    expected = pair[0](x, edge_index)
    clone = copy.deepcopy(pair[0])
    assert_parity((clone, pair[1]), x, edge_index)
    assert clone.lin.weight is not pair[0].lin.weight

    file = io.BytesIO()
    torch.save(pair[0], file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is SparseGATConv
    assert torch.equal(loaded(x, edge_index), expected)


def test_repr():
    assert repr(SparseGATConv(7, 5, heads=2)) == 'SparseGATConv(7, 5, heads=2)'
    conv = SparseGATConv((7, 3), 5, concat=False, dropout=0.5, edge_dim=2,
                         add_self_loops=False, bias=False, residual=True)
    assert repr(conv) == (
        'SparseGATConv((7, 3), 5, heads=1, concat=False, dropout=0.5, '
        'add_self_loops=False, edge_dim=2, bias=False, residual=True)')
    conv = SparseGATConv(7, 5, edge_dim=1, fill_value=torch.zeros(1))
    assert 'fill_value=tensor([0.])' in repr(conv)


# Dropout #####################################################################


@pytest.mark.parametrize('dropout,training', [(0.0, True), (0.6, False)])
def test_dropout_parity(dropout, training):
    pair = make_pair(7, 5, heads=2, dropout=dropout)
    for conv in pair:
        conv.train(training)
    assert_parity(pair, torch.randn(11, 7).double(), random_edges(11, 11))


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9])
def test_dropout_rate_and_scale(rate):
    conv = SparseGATConv(7, 5, heads=4, dropout=rate, add_self_loops=False)
    x = torch.randn(50, 7)
    edge_index = torch.randint(50, (2, 20_000))
    dropped = conv(x, edge_index, return_attention_weights=True)[1][1]
    full = conv.eval()(x, edge_index, return_attention_weights=True)[1][1]
    kept = dropped != 0
    assert_close(dropped[kept], full[kept] / (1 - rate), torch.float32)
    # 80,000 coins: five standard deviations.
    bound = 5 * (rate * (1 - rate) / kept.numel())**0.5
    assert abs(kept.float().mean() - (1 - rate)) < bound
    for head in range(4):  # each head has coins of its own
        assert not torch.equal(kept[:, head], kept[:, head - 1])


@pytest.mark.parametrize('add_self_loops', [True, False])
def test_dropout_of_the_weights_that_are_returned(add_self_loops):
    conv, _ = make_pair(7, 5, heads=2, dropout=0.5,
                        add_self_loops=add_self_loops)
    x, edge_index = torch.randn(11, 7).double(), random_edges(11, 11)
    torch.manual_seed(1)
    expected = conv(x, edge_index)
    torch.manual_seed(1)
    out, _ = conv(x, edge_index, return_attention_weights=True)
    assert_close(out, expected, torch.float64)


def test_dropout_everything():
    conv = SparseGATConv(7, 5, dropout=1.0, bias=False)
    out = conv(torch.randn(11, 7), random_edges(11, 11))
    assert not out.any()


def test_dropout_reproducible():
    conv = SparseGATConv(7, 5, heads=2, dropout=0.5)
    x, edge_index = torch.randn(11, 7), random_edges(11, 11)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(run(conv, x, edge_index))
    assert torch.equal(outs[0][0], outs[1][0])
    for name, grad in outs[0][1].items():
        assert torch.equal(grad, outs[1][1][name])
    assert not torch.equal(outs[0][0], outs[2][0])
    assert not torch.equal(conv(x, edge_index), conv(x, edge_index))


def test_dropout_gives_the_same_mask_to_output_and_gradient():
    # The output is linear in the projected features: its gradient for them,
    # times themselves, must give the output back.
    conv = SparseGATConv(7, 5, heads=2, dropout=0.5, bias=False).double()
    torch.nn.init.zeros_(conv.att_src)
    torch.nn.init.zeros_(conv.att_dst)
    x = torch.randn(11, 7).double().requires_grad_()
    out = conv(x, random_edges(11, 11)).sum()
    grad, = torch.autograd.grad(out, x)
    assert_close((grad * x).sum(), out, torch.float64)


# Memory and precision ########################################################


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    pair = make_pair(7, 5, heads=2, dtype=dtype)
    x, edge_index = torch.randn(11, 7, dtype=dtype), random_edges(11, 11)
    out = pair[0](x, edge_index)
    assert out.dtype == dtype
    expected = pair[0].float()(x.float(), edge_index)
    torch.testing.assert_close(out.float(), expected, rtol=0.03, atol=0.03)


def test_autocast():
    conv = SparseGATConv(7, 5, heads=2)
    x, edge_index = torch.randn(11, 7), random_edges(11, 11)
    with torch.autocast('cpu', torch.bfloat16):
        out = conv(x, edge_index)
        assert out.dtype == GATConv(7, 5)(x, edge_index).dtype
    torch.testing.assert_close(out.float(), conv(x, edge_index), rtol=0.03,
                               atol=0.03)
    out.float().sum().backward()


# Bad input ###################################################################


@pytest.mark.parametrize('x,edge_index,kwargs,error,match', [
    (torch.ones(4, 7, 1), None, {}, ValueError, 'shape'),
    (torch.ones(4, 7).long(), None, {}, TypeError, "'x'"),
    ('x', None, {}, TypeError, "'x'"),
    (None, torch.zeros(2, 3), {}, TypeError, "'edge_index'"),
    (None, torch.zeros(3, 2).long(), {}, ValueError, r'\[2, num_edges\]'),
    (None, torch.tensor([[0], [-1]]), {}, ValueError, 'got -1'),
    (None, torch.tensor([[4], [0]]), {}, ValueError, 'got 4'),
    (None, torch.tensor([[0], [4]]), {}, ValueError, 'got 4'),
    (None, None, dict(size=(4, 5)), ValueError, 'target nodes'),
    (None, None, dict(size=(4, )), ValueError, "'size'"),
    (None, None, dict(edge_attr=torch.ones(5, 3)), ValueError, 'edge_attr'),
    (None, None, dict(edge_attr=torch.ones(2, 3).long()), TypeError,
     'edge_attr'),
    (torch.ones(4, 6), None, {}, ValueError, "'x' must have 7 channels"),
    (None, np.zeros((2, 3), int), {}, TypeError, "'edge_index'"),
], ids=str)
def test_bad_input(x, edge_index, kwargs, error, match):
    conv = SparseGATConv(7, 5, edge_dim=3)
    x = torch.ones(4, 7) if x is None else x
    if edge_index is None:
        edge_index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(error, match=match):
        conv(x, edge_index, **kwargs)


def test_lengths_are_checked_also_of_what_is_not_used():
    conv = SparseGATConv(7, 5)  # without edge_dim
    with pytest.raises(ValueError, match='edge_attr'):
        conv(torch.ones(4, 7), torch.tensor([[0, 1], [1, 0]]), torch.ones(3))


CORRUPT = """
import sys
import torch
from torch_geometric import EdgeIndex
from torch_geometric.typing import WITH_TORCH_SPARSE
from pyg_rankspmm import SparseGATConv, spmm

x, ones, arange = torch.randn(5, 3), torch.ones(5), torch.arange(5)
far = torch.tensor([0, 1, 2, 3, 77])
pointers = [torch.arange(6), torch.tensor([0, 1, 99, 3, 4, 5]),
            torch.tensor([0, 1, -9, 3, 4, 5])]
layouts = {'csr': torch.sparse_csr_tensor, 'csc': torch.sparse_csc_tensor}
graphs = [layout(ptr, index, ones, size=(5, 5), check_invariants=False)
          for layout in layouts.values() for ptr in pointers
          for index in (arange, far) if ptr is not pointers[0]
          or index is far]
graphs += [torch.sparse_coo_tensor(torch.stack([a, b]), ones, (5, 5),
                                   is_coalesced=True, check_invariants=False)
           for a, b in ((far, arange), (arange, far))]
for bad in (far, torch.tensor([-7, 1, 2, 3, 4])):
    for row, col in ((bad, arange), (arange, bad)):
        for order in ('row', 'col'):
            graphs.append(EdgeIndex(torch.stack([row, col]),
                                    sparse_size=(5, 5), sort_order=order))
unsorted = torch.tensor([[3, 1, 4, 0, 2], [2, 0, 1, 4, 3]])
graphs += [EdgeIndex(unsorted.clone(), sparse_size=(5, 5), sort_order=order)
           for order in ('row', 'col')]
if WITH_TORCH_SPARSE:
    from torch_sparse import SparseTensor
    graphs += [SparseTensor(row=row, rowptr=ptr, col=col, is_sorted=True,
                            sparse_sizes=(5, 5), trust_data=True)
               for row, ptr, col in (
                   (None, pointers[0], far), (None, pointers[0], -far),
                   (None, pointers[1], arange), (None, pointers[2], arange),
                   (arange, None, far), (far, None, arange),
                   (-far, None, arange), (unsorted[0], None, arange))]
missed = 0
for graph in graphs:
    for add_self_loops in (True, False):
        if getattr(graph, 'layout', None) == torch.strided and add_self_loops \
                and graph.as_tensor().min() >= 0 \
                and graph.as_tensor().max() < 5:
            continue  # sorted again, whatever it says of itself
        try:
            SparseGATConv(3, 2, add_self_loops=add_self_loops)(x, graph)
        except ValueError:
            continue
        print('accepted', graph, add_self_loops)
        missed += 1
    try:
        spmm(graph, None, x)
        print('accepted by spmm', graph)
        missed += 1
    except ValueError:
        pass
sys.exit(missed)
"""


@pytest.mark.parametrize('kernels', ['1', '0'])
def test_corrupt_structures(kernels):
    # In a process of its own: PyTorch and PyG follow such indices anywhere.
    root = Path(pyg_rankspmm.__file__).parents[1]
    env = {**os.environ, 'PYG_RANKSPMM_KERNELS': kernels}
    out = subprocess.run([sys.executable, '-W', 'ignore', '-c', CORRUPT],
                         cwd=root, env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


def test_shapes_without_data():
    conv = SparseGATConv(7, 5, heads=2).to('meta')
    out = conv(torch.empty(4, 7, device='meta'),
               torch.empty(2, 3, dtype=torch.long, device='meta'))
    assert out.shape == (4, 10) and out.is_meta


def test_other_device():
    conv = SparseGATConv(7, 5)
    with pytest.raises(ValueError, match='device'):
        conv(torch.ones(4, 7), torch.tensor([[0], [1]], device='meta'))
    with pytest.raises(ValueError, match='device'):
        conv((torch.ones(4, 7), torch.ones(4, 7, device='meta')),
             torch.tensor([[0], [1]]))


@pytest.mark.parametrize('rate', [-0.1, 1.5])
def test_bad_dropout(rate):
    conv = SparseGATConv(7, 5, dropout=rate)
    with pytest.raises(ValueError, match='dropout'):
        conv(torch.ones(4, 7), torch.tensor([[0], [1]]))
