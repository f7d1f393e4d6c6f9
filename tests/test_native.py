"""The compiled kernels against the definitions in plain PyTorch."""
import os
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_rankspmm import _native, graph
from pyg_rankspmm.ops import reference

pytestmark = pytest.mark.skipif(not _native.is_available(),
                                reason='installed without kernels')

CHANNELS = [1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 33, 40, 64, 100, 128, 130]
OPS = torch.ops.pyg_rankspmm


@pytest.fixture(params=_native.simd_levels())
def level(request):
    before = _native.simd_level()
    _native.set_simd_level(request.param)
    yield request.param
    _native.set_simd_level(before)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def exact(definition, *args):
    """What a definition yields in double precision."""
    return definition(*(a.double() if isinstance(a, torch.Tensor)
                        and a.is_floating_point() else a for a in args))


def close(actual, expected, tolerance):
    finite = expected[expected.isfinite()].abs()
    scale = max(1.0, finite.max().item() if finite.numel() > 0 else 1.0)
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance,
                               atol=tolerance * scale, equal_nan=True)


TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def random_graph(num_src, num_dst, num_edges, num_loops=0, huge_row=False):
    """Few nodes: empty rows, duplicates and self-loops come by themselves."""
    src = torch.randint(num_src, (num_edges, ))
    dst = torch.randint(num_dst, (num_edges, ))
    if huge_row:
        dst[torch.rand(num_edges) < 0.7] = num_dst // 2
        src[torch.rand(num_edges) < 0.5] = num_src // 2
    return torch.stack([src, dst])


@st.composite
def problems(draw):
    torch.manual_seed(draw(st.integers(0, 2**20)))
    num_src, num_dst = draw(
        st.sampled_from([(1, 1), (5, 7), (40, 40), (3, 90), (300, 200)]))
    num_edges = draw(st.sampled_from([0, 1, 30, 400, 6000]))
    loops = min(num_src, num_dst) if draw(st.booleans()) else 0
    edge_index = random_graph(num_src, num_dst, num_edges,
                              huge_row=draw(st.booleans()))
    by_dst = graph.csr(edge_index[1], edge_index[0], num_dst, num_src, loops)
    by_src = graph.transpose(by_dst, num_src)
    if draw(st.booleans()):
        by_src = (None, None, None)
    return dict(
        by_dst=by_dst,
        matrix=(*by_dst, *by_src),
        num_src=num_src,
        num_dst=num_dst,
        num_edges=num_edges + loops,
        heads=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 16, 17])),
        channels=draw(st.sampled_from(CHANNELS)),
        dtype=draw(
            st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
    )


def randn(draw, *size, dtype):
    """A tensor that may be a strided view."""
    kind = draw(st.sampled_from(['contiguous', 'transposed', 'sliced']))
    if kind == 'transposed':
        return torch.randn(*reversed(size), dtype=dtype).permute(
            *reversed(range(len(size))))
    if kind == 'sliced':
        wider = (*size[:-1], size[-1] + 3)
        return torch.randn(wider, dtype=dtype)[..., 1:-2]
    return torch.randn(size, dtype=dtype)


# Equal to the definition #####################################################


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_attention(data):
    p = data.draw(problems())
    dtype, heads, channels = p['dtype'], p['heads'], p['channels']
    logits = torch.float32 if dtype == torch.bfloat16 else dtype

    def optional(*size, dtype):
        if data.draw(st.booleans()):
            return None
        return randn(data.draw, *size, dtype=dtype)

    features = (
        randn(data.draw, p['num_src'], heads, channels, dtype=dtype),
        randn(data.draw, p['num_src'], heads, dtype=logits),
        optional(p['num_dst'], heads, dtype=logits),
        optional(p['num_edges'], heads, dtype=logits),
        optional(heads, channels, dtype=dtype),
    )
    seed = torch.randint(-2**62, 2**62, (1, ))
    options = (seed, data.draw(st.sampled_from([0.2, 0.0, 1.0, -0.5])),
               data.draw(st.sampled_from([0.0, 0.3, 1.0])))
    tolerance = TOLERANCE[dtype]

    out, lse = OPS.attention(*features, *p['matrix'], *options)
    expected, expected_lse = exact(reference.attention, *features,
                                   *p['by_dst'], *options)
    assert out.dtype == dtype and lse.dtype == logits
    close(out, expected, tolerance)
    close(lse, expected_lse, tolerance)

    grad = randn(data.draw, p['num_dst'], heads, channels, dtype=dtype)
    grads = OPS.attention_backward(grad, *features, out, lse, *p['matrix'],
                                   *options)
    expected = exact(reference.attention_backward, grad, *features, out, lse,
                     *p['by_dst'], *options)
    for actual, wanted, feature in zip(grads, expected, features):
        if feature is not None:
            assert actual.dtype == feature.dtype
        close(actual, wanted, tolerance * 4)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_products(data):
    p = data.draw(problems())
    dtype = p['dtype']
    heads = data.draw(st.sampled_from([(), (p['heads'], )]))
    shape = heads + (p['channels'], )
    x = randn(data.draw, p['num_src'], *shape, dtype=dtype)
    g = randn(data.draw, p['num_dst'], *shape, dtype=dtype)
    value = randn(data.draw, p['num_edges'], *heads, dtype=dtype)
    for v in (value, None):
        out = OPS.spmm(*p['matrix'], v, x)
        assert out.dtype == dtype
        close(out, exact(reference.spmm, *p['by_dst'], v, x), TOLERANCE[dtype])
    out = OPS.sddmm(*p['matrix'], g, x)
    assert out.dtype == dtype
    close(out, exact(reference.sddmm, *p['by_dst'], g, x), TOLERANCE[dtype])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**20), num_edges=st.integers(0, 3000),
       sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)),
       loops=st.booleans(), huge_row=st.booleans())
def test_structures(seed, num_edges, sizes, loops, huge_row):
    torch.manual_seed(seed)
    num_src, num_dst = sizes
    src, dst = random_graph(num_src, num_dst, num_edges, huge_row=huge_row)
    args = (dst, src, num_dst, num_src, min(sizes) if loops else 0)
    matrix = OPS.csr(*args)
    count = int(matrix[0][-1])
    for a, b in zip(matrix, graph._csr_reference(*args)):
        assert a.dtype == b.dtype and a.shape == b.shape
        k = len(a) if a.dtype == torch.int64 else count
        assert torch.equal(a[:k], b[:k])
        assert not a[k:].any()
    turned = OPS.transpose(*matrix, num_src)
    for a, b in zip(turned, graph._transpose_reference(*matrix, num_src)):
        k = len(a) if a.dtype == torch.int64 else count
        assert torch.equal(a[:k], b[:k])
        assert not a[k:].any()
    for a, b in zip(OPS.group(src, num_src),
                    graph._group_reference(src, num_src)):
        assert torch.equal(a, b) and a.dtype == b.dtype
    if not loops:
        wide = matrix[1].long()
        for a, b in zip(OPS.compress(matrix[0], wide, num_src),
                        graph._compress_reference(matrix[0], wide, num_src)):
            assert torch.equal(a, b) and a.dtype == b.dtype


@pytest.mark.parametrize('heads,channels', [(8, 8), (4, 32), (8, 32), (1, 128),
                                            (3, 33), (1, 1), (16, 4), (5, 7)])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_every_level(level, heads, channels, dtype):
    torch.manual_seed(3)
    edge_index = random_graph(70, 50, 9000, huge_row=True)
    by_dst = graph.csr(edge_index[1], edge_index[0], 50, 70)
    x = torch.randn(70, heads, channels, dtype=dtype)
    a_src, a_dst = (torch.randn(n, heads, dtype=dtype) for n in (70, 50))
    options = (torch.tensor([7]), 0.2, 0.25)
    none = (None, ) * 3
    out, lse = OPS.attention(x, a_src, a_dst, None, None, *by_dst, *none,
                             *options)
    expected, expected_lse = exact(reference.attention, x, a_src, a_dst, None,
                                   None, *by_dst, *options)
    close(out, expected, TOLERANCE[dtype])
    close(lse, expected_lse, TOLERANCE[dtype])
    grad = torch.randn_like(out)
    grads = OPS.attention_backward(grad, x, a_src, a_dst, None, None, out, lse,
                                   *by_dst, *none, *options)
    wanted = exact(reference.attention_backward, grad, x, a_src, a_dst, None,
                   None, out, lse, *by_dst, *options)
    for a, b in zip(grads, wanted):
        close(a, b, TOLERANCE[dtype] * 4)


@pytest.mark.parametrize('heads', [1, 3, 8])
def test_minus_infinity_and_nan(level, heads):
    by_dst = graph.csr(torch.tensor([0, 0, 1, 2, 2]),
                       torch.tensor([0, 1, 2, 0, 3]), 4, 4)
    inf = float('inf')
    x = torch.randn(4, heads, 5)
    a_src = torch.tensor([0.5, -inf, -inf, float('nan')])
    a_src = a_src.view(-1, 1).repeat(1, heads)
    bias = torch.randn(heads, 5)
    args = (x, a_src, None, None, bias, *by_dst)
    out, lse = OPS.attention(*args, *(None, ) * 4, 0.2, 0.0)
    assert torch.equal(out[0], x[0] + bias)
    assert torch.equal(out[1], bias) and torch.equal(out[3], bias)
    assert (lse[1] == -inf).all() and (lse[3] == -inf).all()
    assert out[2].isnan().all() and lse[2].isnan().all()
    grads = OPS.attention_backward(torch.randn_like(out), *args[:5], out, lse,
                                   *by_dst, *(None, ) * 4, 0.2, 0.0)
    assert not grads[0][2].any() and not grads[1][2].any()
    assert not grads[0][1].any() and not grads[1][1].any()


def test_what_the_kernels_do_not_take():
    by_dst = graph.csr(torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]), 2, 3)
    wide = (by_dst.rowptr, by_dst.col.long(), by_dst.perm.long())
    none = (None, ) * 3
    x, value = torch.randn(3, 4), torch.randn(3)
    expected = OPS.spmm(*by_dst, *none, value, x)
    torch.testing.assert_close(OPS.spmm(*wide, *none, value, x), expected)
    assert OPS.spmm(*by_dst, *none, value, x[:, :0]).shape == (2, 0)
    assert OPS.sddmm(*by_dst, *none, x[:2, :0], x[:, :0]).tolist() == [0] * 3


# The same everywhere #########################################################


@pytest.mark.parametrize('heads,channels', [(8, 8), (3, 33), (1, 128)])
def test_threads(threads, heads, channels):
    torch.manual_seed(5)
    edge_index = random_graph(500, 400, 30000, huge_row=True)
    x = torch.randn(500, heads, channels)
    logits = [torch.randn(n, heads) for n in (500, 400, 30400)]
    bias = torch.randn(heads, channels)
    grad = torch.randn(400, heads, channels)
    seed = torch.tensor([11])

    def run():
        by_dst = graph.csr(edge_index[1], edge_index[0], 400, 500, 400)
        ops = (*by_dst, None, None, None)
        by_src = graph.transpose(by_dst, 500)
        out, lse = OPS.attention(x, *logits, bias, *ops, seed, 0.2, 0.1)
        grads = OPS.attention_backward(grad, x, *logits, bias, out, lse, *ops,
                                       seed, 0.2, 0.1)
        again = OPS.attention_backward(grad, x, *logits[:2], None, None, out,
                                       lse, *by_dst, *by_src, seed, 0.2, 0.1)
        return (*by_dst, *by_src, out, lse, *grads, *again,
                OPS.spmm(*ops, logits[2], x), OPS.sddmm(*ops, grad, x))

    threads(1)
    expected = run()
    for n in (2, 3, 7):
        threads(n)
        for a, b in zip(run(), expected):
            assert torch.equal(a, b)


def test_python_threads():
    torch.manual_seed(6)
    row, col = torch.randint(300, (2, 20000))
    value, x = torch.randn(20000), torch.randn(300, 40)
    by_dst = graph.csr(row, col, 300, 300)
    expected = OPS.spmm(*by_dst, None, None, None, value, x)
    wrong = []

    def run():
        for _ in range(10):
            matrix = graph.csr(row, col, 300, 300)
            out = OPS.spmm(*matrix, None, None, None, value, x)
            if not torch.equal(out, expected):
                wrong.append(out)

    workers = [threading.Thread(target=run) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork()')
def test_fork():
    code = '''
import os, torch
from pyg_rankspmm import graph
torch.set_num_threads(2)
row, col = torch.randint(300, (2, 20000))
x, value = torch.randn(300, 64), torch.randn(20000)
def run():
    matrix = graph.csr(row, col, 300, 300)
    return torch.ops.pyg_rankspmm.spmm(*matrix, None, None, None, value, x)
expected = run()
pid = os.fork()
if pid == 0:
    os._exit(0 if torch.equal(run(), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
'''
    subprocess.run([sys.executable, '-c', code], check=True, timeout=120)


# Errors ######################################################################


def corrupt(by_dst, field, position, value):
    broken = by_dst._asdict()
    broken[field] = broken[field].clone()
    broken[field][position] = value
    return tuple(broken.values())


@pytest.mark.parametrize('field,position,value,error', [
    ('rowptr', 0, 1, "'rowptr' must rise"),
    ('rowptr', 0, -1, "'rowptr' must rise"),
    ('rowptr', 2, 100, "'rowptr' must rise"),
    ('rowptr', 2, -5, "'rowptr' must rise"),
    ('rowptr', -1, 9, "'rowptr' must rise"),
    ('rowptr', -1, -9, "'rowptr' must rise"),
    ('col', 0, -1, r"'col' must hold indices from 0 to 4 \(got -1\)"),
    ('col', 3, 5, r"'col' must hold indices from 0 to 4 \(got 5\)"),
    ('perm', 1, 8, r"'perm' must hold indices from 0 to 7 \(got 8\)"),
    ('perm', 1, -2, r"'perm' must hold indices from 0 to 7 \(got -2\)"),
])
def test_corrupted_structures(field, position, value, error):
    row, col = torch.randint(4, (8, )), torch.randint(5, (8, ))
    broken = corrupt(graph.csr(row, col, 4, 5), field, position, value)
    x, g = torch.randn(5, 2, 3), torch.randn(4, 2, 3)
    a_src, a_edge, none = torch.randn(5, 2), torch.randn(8, 2), (None, ) * 3
    lse = torch.zeros(4, 2)
    for run in (
            lambda: OPS.spmm(*broken, *none, a_edge, x),
            lambda: OPS.sddmm(*broken, *none, g, x),
            lambda: OPS.transpose(*broken, 5),
            lambda: OPS.attention(x, a_src, None, a_edge, None, *broken, *none,
                                  None, 0.2, 0.0),
            lambda: OPS.attention_backward(g, x, a_src, None, a_edge, None, g,
                                           lse, *broken, *none, None, 0.2,
                                           0.0),
    ):
        with pytest.raises(ValueError, match=error):
            run()


def test_corrupted_transpose():
    by_dst = graph.csr(torch.arange(4), torch.arange(4), 4, 4)
    x, lse = torch.randn(4, 1, 3), torch.zeros(4, 1)
    a = torch.randn(4, 1)

    def run(by_src):
        OPS.attention_backward(x, x, a, a, None, None, x, lse, *by_dst,
                               *by_src, None, 0.2, 0.0)

    run(by_dst)
    with pytest.raises(ValueError, match="'row' must hold indices"):
        run(corrupt(by_dst, 'col', 0, 4))
    with pytest.raises(ValueError, match="'colptr' must rise"):
        run(corrupt(by_dst, 'rowptr', 1, 7))
    with pytest.raises(ValueError, match='must hold the same edges'):
        run(corrupt(by_dst, 'rowptr', 4, 3))


@pytest.mark.parametrize('name,size', [('a_src', (4, 2)), ('a_dst', (5, 2)),
                                       ('a_edge', (7, 2)), ('bias', (3, 2)),
                                       ('value', (7, 2)), ('g', (5, 2, 3))])
def test_wrong_shapes(name, size):
    by_dst = graph.csr(torch.randint(4, (8, )), torch.randint(5, (8, )), 4, 5)
    x, none = torch.randn(5, 2, 3), (None, ) * 3
    args = dict(a_src=torch.randn(5, 2), a_dst=None, a_edge=None, bias=None)
    args[name] = torch.randn(size)
    with pytest.raises(ValueError, match=f"'{name}' must be a torch.float32 "):
        if name == 'value':
            OPS.spmm(*by_dst, *none, args['value'], x)
        elif name == 'g':
            OPS.sddmm(*by_dst, *none, args['g'], x)
        else:
            OPS.attention(x, *args.values(), *by_dst, *none, None, 0.2, 0.0)


def test_index_out_of_bounds():
    good, high = torch.tensor([0, 1, 2]), torch.tensor([0, 3, 9])
    low = torch.tensor([0, -3, 9])
    for bad, got in ((high, 9), (low, -3)):
        for args, name in (((bad, good, 3, 3, 0), r'edge_index\[1\]'),
                           ((good, bad, 3, 3, 0), r'edge_index\[0\]')):
            error = f"'{name}' must hold indices from 0 to 2 .got {got}."
            with pytest.raises(ValueError, match=error):
                OPS.csr(*args)
            with pytest.raises(ValueError, match=error):
                graph._csr_reference(*args)
        with pytest.raises(ValueError, match=f"'index' .* .got {got}."):
            OPS.group(bad, 3)
        with pytest.raises(ValueError, match=f"'edge_index' .* .got {got}."):
            OPS.compress(torch.tensor([0, 3]), bad, 3)
    for ptr in ([0, 2], [1, 3], [0, 5, 3]):
        with pytest.raises(ValueError, match='must rise from 0 to the number'):
            OPS.compress(torch.tensor(ptr), good, 3)


@pytest.mark.parametrize('bad', [-1, 3, 2**31 - 1])
def test_place_out_of_bounds(bad):
    x, place = torch.randn(3), torch.tensor([0, bad, 1], dtype=torch.int32)
    ptr, tau = torch.tensor([0, 3]), torch.ones(1)
    for name, run in (
        ('place', lambda: OPS.arrange(x, place)),
        ('place', lambda: OPS.restore(x.double(), place)),
        ('order', lambda: OPS.soft_rank_backward(x, x, tau, ptr, place)),
    ):
        error = f"'{name}' must hold indices from 0 to 2 .got {bad}."
        with pytest.raises(ValueError, match=error):
            run()
    with pytest.raises(ValueError, match="'place' must"):
        OPS.arrange(x, place[:2])


@pytest.mark.parametrize('ptr', [[0, 2], [1, 3], [0, 4, 3], [0, -1, 3], []])
def test_corrupted_groups(ptr):
    x, ptr = torch.randn(3), torch.tensor(ptr, dtype=torch.long)
    num_groups = max(0, ptr.numel() - 1)
    tau, order = torch.ones(num_groups), torch.arange(3).int()
    for run in (
            lambda: OPS.soft_rank(x, tau, ptr),
            lambda: OPS.soft_rank_backward(x, x, tau, ptr, order),
            lambda: OPS.rbo(x, x, ptr, 0.9),
            lambda: OPS.rbo_backward(tau, x, ptr),
            lambda: OPS.temperatures(x, ptr, 1.0, True),
            lambda: OPS.tie_spans(x, ptr),
            lambda: OPS.rank_biased_agreement(x, x, ptr, 0.9, 'b'),
    ):
        with pytest.raises(ValueError, match="'ptr' must"):
            run()


# Without kernels #############################################################


def run_python(code, **env):
    result = subprocess.run([sys.executable, '-c', code], check=True,
                            env={**os.environ, **env}, capture_output=True,
                            text=True, timeout=120)
    return result.stdout, result.stderr


def test_switched_off():
    out, _ = run_python(
        'from pyg_rankspmm.info import info; import pyg_rankspmm as p, torch;'
        'print(p.spmm(torch.tensor([[0], [0]]), None, torch.ones(1, 1)));'
        'print(info()["kernels"])', PYG_RANKSPMM_KERNELS='0')
    assert 'tensor([[1.]])' in out and 'plain PyTorch' in out


def test_unclear_switch():
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_python('import pyg_rankspmm', PYG_RANKSPMM_KERNELS='no')
    assert "KERNELS must be 0 or 1 (got 'no')" in error.value.stderr


def test_not_there():
    out, err = run_python(
        'import sys; sys.modules["pyg_rankspmm._C"] = None\n'
        'import pyg_rankspmm as p, torch\n'
        'print(p.spmm(torch.tensor([[0], [0]]), None, torch.ones(1, 1)))\n'
        'print(p._native.is_available(), p._native.simd_levels())')
    assert 'tensor([[1.]])' in out and 'False []' in out
    assert err.count("UserWarning: 'pyg_rankspmm' was imported from its "
                     "sources") == 1
    assert 'leave that folder' in err and 'pip install -e .' in err


def test_forced_level():
    lowest = _native.simd_levels()[-1]
    out, _ = run_python('from pyg_rankspmm import _native;'
                        'print(_native.simd_level())',
                        PYG_RANKSPMM_SIMD=lowest)
    assert out.strip() == lowest
    with pytest.raises(ValueError, match="no SIMD level 'v9'"):
        _native.set_simd_level('v9')


def test_info():
    out, _ = run_python('import runpy; runpy.run_module("pyg_rankspmm.info", '
                        'run_name="__main__")')
    for name in ('torch ', 'kernels', 'SIMD level', 'threads',
                 'torch_sparse'):
        assert name in out
