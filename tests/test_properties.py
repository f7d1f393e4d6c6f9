"""What must hold for every graph and all scores, whatever they are.

'make fuzz' runs these with twenty times as many examples.
"""
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from torch.autograd import gradcheck
from torch_geometric import EdgeIndex
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_rankspmm import (
    RankingLoss,
    SparseGATConv,
    SpecialSpmm,
    _native,
    sddmm,
    soft_rank,
    spmm,
)
from pyg_rankspmm.graph import arrange, from_edge_index, group
from pyg_rankspmm.metrics.functional import kendall_tau, rank_biased_overlap
from pyg_rankspmm.ops import reference
from pyg_rankspmm.ops.attention import attention
from pyg_rankspmm.ops.soft_rank import (
    _soft_rank_grad_reference,
    _soft_rank_reference,
)

OPS = torch.ops.pyg_rankspmm
seeds = st.integers(0, 2**20)


def examples(number):
    """So many, or more, as the profile says."""
    return settings(max_examples=number * settings.default.max_examples // 100,
                    stateful_step_count=12)


def close(actual, expected, rtol=1e-9):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol,
                               equal_nan=True)


# Rankings ####################################################################

KINDS = ['normal', 'ties', 'equal', 'huge', 'tiny', 'infinite', 'nan']


def draw_scores(kind, size, dtype):
    score = torch.randn(size, dtype=torch.float64)
    if kind == 'ties':
        score = score.round()
    elif kind == 'equal':
        score = torch.ones_like(score)
    elif kind in ('huge', 'tiny'):
        score = score * (1e30 if kind == 'huge' else 1e-40)
    elif kind in ('infinite', 'nan'):
        odd = torch.rand(size) < 0.1
        sign = torch.where(torch.rand(size) < 0.5, 1.0, -1.0)
        score[odd] = (sign * (math.inf if kind == 'infinite' else
                              math.nan)).double()[odd]
    score = score.to(dtype)
    # A view with a stride, half of the time.
    wide = torch.stack([score, score], -1)
    return wide[:, 0] if torch.rand(()) < 0.5 else score


@st.composite
def rankings(draw, kinds=KINDS, dtypes=(torch.float64, torch.float32)):
    """Scores, targets, the group of each, and how many groups there are."""
    torch.manual_seed(draw(seeds))
    size = draw(st.sampled_from([0, 1, 2, 7, 40, 300]))
    groups = draw(st.integers(1, 8))
    dtype = draw(st.sampled_from(dtypes))
    score = draw_scores(draw(st.sampled_from(kinds)), size, dtype)
    target = draw_scores(draw(st.sampled_from(kinds[:2])), size,
                         torch.float64)
    return score, target, torch.randint(groups, (size, )), groups


@given(rankings(), st.sampled_from([1e-8, 0.3, 1e8]), st.booleans(),
       st.sampled_from([0.3, 0.9, 1.0]))
@examples(60)
def test_ranking_operators_are_their_definitions(data, tau, relative, p):
    score, target, index, groups = data
    ptr, place = group(index, groups)
    score, target, index = (arrange(x, place) for x in (score, target, index))
    wide = score.double()
    rtol = 1e-9 if score.dtype == torch.float64 else 2e-5
    nan = torch.zeros(groups).index_add(0, index, score.isnan().float()) > 0
    for actual, wanted in zip(OPS.tie_spans(score, ptr),
                              reference.tie_spans(score, ptr)):
        keep = ~nan[index]  # there is no order with NaN
        assert torch.equal(actual.long()[keep], wanted[keep])
    temperature = OPS.temperatures(score, ptr, tau, relative)
    close(temperature,
          reference.temperatures(score, ptr, tau, relative), rtol)

    rank, order = OPS.soft_rank(score, temperature, ptr)
    wanted, _ = _soft_rank_reference(wide, temperature.double(), ptr)
    close(rank.double(), wanted, rtol)
    grad = torch.randn_like(rank)
    actual = OPS.soft_rank_backward(grad, score, temperature, ptr, order)
    wanted = _soft_rank_grad_reference(grad.double(), wide,
                                       temperature.double(), ptr, order)
    # Both are sums of differences, in units of 1 / temperature.
    unit = temperature[index].double()
    close(actual.double() * unit, wanted * unit, rtol * 100)

    for actual, wanted in zip(OPS.rbo(rank, target, ptr, p),
                              reference.rbo(rank, target, ptr, p)):
        close(actual, wanted, 1e-12 if rtol == 1e-9 else rtol)


@given(rankings(KINDS[:5], (torch.float64, )),
       st.sampled_from([1e-3, 0.3, 1e3]))
@examples(60)
def test_invariants_of_rankings(data, temperature):
    score, target, index, groups = data
    score = score.detach().requires_grad_()
    n = torch.bincount(index, minlength=groups)
    rank = soft_rank(score, index, temperature)
    total = torch.zeros(groups, dtype=torch.float64).index_add(0, index, rank)
    close(total, (n * (n + 1) / 2).double())

    criterion = RankingLoss(0.9, temperature, reduction='none')
    loss = criterion(score, target, index, dim_size=groups)
    rbo = 1 - loss.detach() / n.clamp(min=1)
    assert ((rbo >= 0) & (rbo <= 1)).all()
    grad, = torch.autograd.grad(loss.sum(), score)
    assert grad.isfinite().all()
    # Shifting all scores of a group changes nothing.
    zero = torch.zeros(groups, dtype=torch.float64)
    # (What is smaller than the rounding of a rank may stand alone.)
    bound = 1e-9 * zero.index_add(0, index, grad.abs()) + 1e-14 / temperature
    assert (zero.index_add(0, index, grad).abs() <= bound).all()

    # Neither the order of the edges nor the names of the groups matter.
    perm, names = torch.randperm(len(index)), torch.randperm(groups)
    again = criterion(score[perm], target[perm], names[index][perm],
                      dim_size=groups + 1)
    close(again[:-1][names], loss, 1e-7)
    assert again[-1] == 0


@given(rankings(KINDS[:6], (torch.float64, torch.bfloat16, torch.float16)),
       st.sampled_from([0.5, 0.9, 1.0]))
@examples(60)
def test_invariants_of_metrics(data, p):
    score, target, index, groups = data
    n = torch.bincount(index, minlength=groups)
    perm, names = torch.randperm(len(index)), torch.randperm(groups)
    for metric, low in ((lambda *a, **k: rank_biased_overlap(*a, p=p, **k), 0),
                        (kendall_tau, -1)):
        out = metric(score, target, index, reduction='none', dim_size=groups)
        found = out[~out.isnan()]
        assert ((found >= low) & (found <= 1)).all()
        again = metric(score[perm], target[perm], names[index][perm],
                       reduction='none', dim_size=groups + 1)
        close(again[:-1][names], out)
        if len(score.unique()) == len(score):
            same = metric(score, score, index)
            assert same.isnan() or same == pytest.approx(1)
    assert out[n < 2].isnan().all()


# Graphs ######################################################################


class Problem:
    """A graph with everything that a layer may want to know of it."""
    def __init__(self, seed, num_src, num_dst, num_edges):
        torch.manual_seed(seed)
        self.size = num_src, num_dst
        self.edge_index = torch.stack([
            torch.randint(max(1, n), (num_edges, )) for n in self.size])
        self.value = torch.randn(num_edges, 2, dtype=torch.float64)
        self.x = torch.randn(num_src, 2, 3, dtype=torch.float64)
        self.g = torch.randn(num_dst, 2, 3, dtype=torch.float64)
        self.a_src = torch.randn(num_src, 2, dtype=torch.float64)
        self.a_dst = torch.randn(num_dst, 2, dtype=torch.float64)

    def attention(self, x=None, a_src=None, a_dst=None, value=None):
        graph = from_edge_index(self.edge_index, self.size)
        return attention(graph, self.x if x is None else x,
                         self.a_src if a_src is None else a_src,
                         self.a_dst if a_dst is None else a_dst,
                         self.value if value is None else value)

    def results(self):
        """Node results and edge results."""
        args = [t.clone().requires_grad_() for t in (
            self.x, self.a_src, self.a_dst, self.value)]
        att = self.attention(*args)
        prod = spmm(self.edge_index, args[3], args[0], self.size)
        dot = sddmm(self.edge_index, self.g, args[0])
        loss = (att * self.g).sum() + (prod * self.g).sum() + dot.sin().sum()
        d_x, d_src, d_dst, d_value = torch.autograd.grad(loss, args)
        return {'dst': (att, prod, d_dst), 'src': (d_x, d_src),
                'edge': (dot, d_value)}


@st.composite
def problems(draw, max_nodes=9, max_edges=30):
    num_edges = draw(st.integers(0, max_edges))
    low = 1 if num_edges else 0
    return Problem(draw(seeds), draw(st.integers(low, max_nodes)),
                   draw(st.integers(low, max_nodes)), num_edges)


@given(problems())
@examples(50)
def test_order_of_edges_and_names_of_nodes_do_not_matter(problem):
    before = problem.results()
    num_src, num_dst = problem.size
    order = torch.randperm(problem.edge_index.size(1))
    src, dst = torch.randperm(num_src), torch.randperm(num_dst)
    problem.edge_index = torch.stack([src[problem.edge_index[0]],
                                      dst[problem.edge_index[1]]])[:, order]
    problem.value = problem.value[order]
    for names, fields in ((src, ('x', 'a_src')), (dst, ('g', 'a_dst'))):
        for name in fields:
            old = getattr(problem, name)
            setattr(problem, name, torch.empty_like(old).index_copy(
                0, names, old))
    after = problem.results()
    for kind, index in (('src', src), ('dst', dst)):
        for a, b in zip(after[kind], before[kind]):
            close(a[index], b)
    for a, b in zip(after['edge'], before['edge']):
        close(a, b[order])


@given(problems())
@examples(50)
def test_a_node_without_edges_changes_nothing(problem):
    before = problem.results()
    problem.size = problem.size[0] + 1, problem.size[1] + 1
    for name in ('x', 'g', 'a_src', 'a_dst'):
        # If somebody looked at it, everybody would notice.
        old = getattr(problem, name)
        setattr(problem, name, torch.cat([
            old, torch.full((1, *old.shape[1:]), math.nan).double()]))
    problem.g[-1] = 0.0  # (only for the sum)
    after = problem.results()
    for kind, values in before.items():
        for a, b in zip(after[kind], values):
            assert torch.equal(a[:b.size(0)], b)
    for out in after['dst'][:2]:
        assert not out[-1].any()


@given(problems(max_edges=12), st.sampled_from(['attention', 'spmm', 'sddmm']))
@examples(15)
def test_gradients_are_finite_differences(problem, what):
    assume(problem.edge_index.size(1) > 0)
    args = {
        'attention': (problem.x, problem.a_src, problem.a_dst, problem.value),
        'spmm': (problem.value, problem.x),
        'sddmm': (problem.g, problem.x),
    }[what]
    function = {
        'attention': problem.attention,
        'spmm': lambda *a: spmm(problem.edge_index, *a, problem.size),
        'sddmm': lambda *a: sddmm(problem.edge_index, *a),
    }[what]
    assert gradcheck(function, [a.requires_grad_() for a in args])


@given(rankings(['normal'], (torch.float64, )), st.sampled_from([0.5, 1.0]),
       st.sampled_from(['mean', 'sum', 'none']))
@examples(15)
def test_gradients_of_the_loss_are_finite_differences(data, p, reduction):
    pred, target, index, groups = data
    assume(0 < len(pred) <= 40)
    criterion = RankingLoss(p, 0.5, relative=False, reduction=reduction)
    assert gradcheck(lambda x: criterion(x, target, index, groups),
                     pred.clone().requires_grad_())


@given(problems(), seeds)
@examples(30)
def test_special_spmm_is_a_dense_product(problem, seed):
    row, col = problem.edge_index.flip(0)
    value, b = problem.value[:, 0], problem.x[:, 0]
    shape = problem.size[::-1]
    dense = torch.zeros(shape).double().index_put((row, col), value,
                                                  accumulate=True)
    close(SpecialSpmm()(torch.stack([row, col]), value, shape, b), dense @ b)


# What is not finite ##########################################################


@given(problems(), st.sampled_from(['x', 'a_src', 'a_dst', 'value', 'g']),
       st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans())
@examples(80)
def test_what_is_not_finite_stays_with_its_neighbors(problem, name, bad,
                                                     loops):
    """Results that do not depend on the bad number keep their bits."""
    field = getattr(problem, name)
    assume(field.size(0) > 0)
    num_src, num_dst = problem.size
    num_loops = min(num_src, num_dst) if loops else 0
    graph = from_edge_index(problem.edge_index, problem.size, num_loops)
    loop = torch.arange(num_loops)
    src, dst = torch.cat([problem.edge_index, torch.stack([loop, loop])], 1)
    here = (src != dst) | (torch.arange(len(src)) >= len(src) - num_loops) \
        if loops else torch.ones(len(src)).bool()
    value = torch.cat([problem.value, problem.value.new_ones(num_loops, 2)])

    def run(definition=False):
        leaves = [t.clone().requires_grad_() for t in (
            problem.x, problem.a_src, problem.a_dst, value)]
        if not definition:
            out = attention(graph, *leaves)
            return [out, *torch.autograd.grad(out, leaves, problem.g)]
        with torch.no_grad():
            out, lse = reference.attention(*leaves, None, *graph.by_dst, None,
                                           0.2, 0.0)
            return [out, *reference.attention_backward(
                problem.g, *leaves, None, out, lse, *graph.by_dst, None, 0.2,
                0.0)[:4]]

    before = run(), run(True)
    at = int(torch.randint(field.size(0), ()))
    # Who hears of it: a number of a source reaches the targets of its edges,
    # and the gradient everything that such a target looks at.
    edge = torch.zeros(len(src)).bool()
    if name == 'value':
        value[at] = bad
        edge[at] = True
    else:
        field[at] = bad
        edge = (src == at) if name in ('x', 'a_src') else (dst == at)
    edge &= here
    reached = torch.zeros(num_dst).bool()
    reached[dst[edge]] = True
    if name in ('a_dst', 'g'):
        reached[at] = True
    edge = reached[dst] & here
    source = torch.zeros(num_src).bool()
    source[src[edge]] = True
    if name in ('x', 'a_src'):
        source[at] = True
    for clean, actual in zip(before, (run(), run(True))):
        forward = torch.zeros_like(reached) if name == 'g' else reached
        for a, b, odd in zip(actual, clean, (forward, source, source, reached,
                                             edge)):
            assert torch.equal(a[~odd], b[~odd])


# States ######################################################################


def forms(edge_index, size):
    """A graph without duplicates, sorted by target, in all forms of PyG."""
    src, dst = edge_index
    ones, shape = torch.ones(edge_index.size(1)), size[::-1]
    coo = torch.sparse_coo_tensor(torch.stack([dst, src]), ones, shape,
                                  is_coalesced=True)
    out = {
        'tensor': edge_index,
        'int32': edge_index.int(),
        'strided': torch.stack([edge_index, edge_index], -1)[..., 0],
        'EdgeIndex': EdgeIndex(edge_index, sparse_size=size),
        'by col': EdgeIndex(edge_index, sparse_size=size, sort_order='col'),
        'by row': EdgeIndex(edge_index, sparse_size=size).sort_by('row')[0],
        'coo': coo,
        'csr': coo.to_sparse_csr(),
        'csc': coo.to_sparse_csc(),
    }
    if WITH_TORCH_SPARSE:
        from torch_sparse import SparseTensor
        out['SparseTensor'] = SparseTensor(row=dst, col=src,
                                           sparse_sizes=shape)
    return out


NAMES = ['tensor', 'int32', 'strided', 'EdgeIndex', 'by col', 'by row', 'coo',
         'csr', 'csc', 'SparseTensor']


class Session(RuleBasedStateMachine):
    """A layer and graphs that live through changes of everything around them,
    and give the same numbers at any time."""
    @initialize(seed=seeds, num_nodes=st.integers(1, 60),
                num_edges=st.sampled_from([0, 1, 50, 2000]))
    def set_up(self, seed, num_nodes, num_edges):
        torch.manual_seed(seed)
        edges = torch.randint(num_nodes, (2, num_edges))
        edges = torch.unique(edges.flip(0), dim=1).flip(0).contiguous()
        size = (num_nodes, num_nodes)
        self.threads, self.level = torch.get_num_threads(), _native.simd_level(
        )
        self.forms = forms(edges, size)
        self.conv = SparseGATConv(5, 4, heads=3, add_self_loops=False)
        self.x = torch.randn(num_nodes, 5)
        self.target = torch.randn(edges.size(1))
        self.edges = edges
        self.expected = self.run('tensor')

    def run(self, name):
        self.conv.zero_grad()
        h = self.conv(self.x, self.forms[name])
        src, dst = self.edges
        loss = RankingLoss()((h[src] * h[dst]).sum(-1), self.target,
                             self.edges)
        loss.backward()
        return [h.detach(), loss.detach(),
                *(p.grad.clone() for p in self.conv.parameters())]

    @rule(threads=st.integers(1, 4))
    def change_threads(self, threads):
        torch.set_num_threads(threads)

    @rule(which=st.integers(0, 2))
    def change_level(self, which):
        levels = _native.simd_levels()
        if levels:
            _native.set_simd_level(levels[which % len(levels)])

    @rule(name=st.sampled_from(NAMES))
    def train(self, name):
        if name in self.forms:
            for a, b in zip(self.run(name), self.expected):
                close(a, b, 1e-4)

    @rule(name=st.sampled_from(NAMES), mode=st.sampled_from(
        [torch.no_grad, torch.inference_mode]))
    def look(self, name, mode):
        if name in self.forms:
            with mode():
                close(self.conv(self.x, self.forms[name]), self.expected[0],
                      1e-4)

    @rule(name=st.sampled_from(NAMES))
    def multiply(self, name):
        if name in self.forms:
            close(spmm(self.forms[name], None, self.x),
                  spmm(self.edges, None, self.x), 1e-4)

    @invariant()
    def finite(self):
        assert all(value.isfinite().all() for value in self.expected)

    def teardown(self):
        torch.set_num_threads(self.threads)
        if self.level:
            _native.set_simd_level(self.level)


Session.TestCase.settings = examples(12)
TestSession = Session.TestCase


@pytest.mark.parametrize('name', NAMES)
def test_forms_are_all_there(name):
    edges = torch.tensor([[0, 2, 1], [0, 0, 1]])
    if name == 'SparseTensor' and not WITH_TORCH_SPARSE:
        pytest.skip('needs torch_sparse')
    assert name in forms(edges, (3, 3))
