"""The kernels on structures that are broken in every way, thousands of them.

The operators are called as :mod:`torch.ops`, past all checks of the public
functions. A slow check in Python says whether the arguments are sound: then
the kernel must return what the definition does, else raise ValueError.
'make fuzz' tries 100,000 of them, 'make sanitize' runs them under
AddressSanitizer, which sees what is read or written outside of an array.
"""
import math
import os
import random

import pytest
import torch

from pyg_rankspmm import _native, graph
from pyg_rankspmm.ops import agreement, reference

pytestmark = pytest.mark.skipif(not _native.is_available(),
                                reason='installed without kernels')

COUNT = int(os.environ.get('TEST_STRUCTURES', 4000))
OPS = torch.ops.pyg_rankspmm
H, C, NUM_LOOPS = 2, 3, 2
WILD = [-1, -2, -2**31, 2**31 - 1, 2**31, 2**32 + 1, -2**62, 2**62, -2**63,
        2**63 - 1, 0, 1, 2, 5, 6, 7, 13]
INT32 = torch.iinfo(torch.int32)


# Sound arguments #############################################################


def pointers(rng, num_rows, total):
    cuts = sorted(rng.randint(0, total) for _ in range(max(0, num_rows - 1)))
    return torch.tensor([0, *cuts, total][:num_rows + 1])


def matrix(rng):
    """rowptr, col, perm, colptr, row, perm_t, and their numbers of nodes."""
    num_rows, num_cols = rng.randint(1, 6), rng.randint(1, 6)
    size = rng.choice([0, 1, 5, 12, 12, 12, 3000 if rng.random() < .02 else 7])
    edges = torch.tensor([[rng.randrange(num_rows), rng.randrange(num_cols)]
                          for _ in range(size)], dtype=torch.long).view(-1, 2)
    loops = rng.choice([0, 0, min(num_rows, num_cols)])
    by_row = graph.csr(edges[:, 0], edges[:, 1], num_rows, num_cols, loops)
    by_col = graph.transpose(by_row, num_cols)
    if rng.random() < 0.3 and not loops:
        by_row = (*by_row[:2], None)
        by_col = graph.transpose(graph.CSR(*by_row), num_cols)
    names = ('rowptr', 'col', 'perm', 'colptr', 'row', 'perm_t')
    out = dict(zip(names, (*by_row, *by_col)))
    if rng.random() < 0.5:
        out.update(colptr=None, row=None, perm_t=None)
    return out, num_rows, num_cols


def groups(rng):
    count, size = rng.randint(1, 5), rng.choice([0, 1, 4, 9, 9, 60])
    return dict(ptr=pointers(rng, count, size)), count, size


def floats(*shape):
    return torch.randn(shape)


def spmm_args(rng):
    args, num_rows, num_cols = matrix(rng)
    value = floats(args['col'].numel(), H) if rng.random() < 0.7 else None
    return dict(args, value=value, x=floats(num_cols, H, C))


def sddmm_args(rng):
    args, num_rows, num_cols = matrix(rng)
    return dict(args, g=floats(num_rows, H, C), x=floats(num_cols, H, C))


def attention_args(rng):
    args, num_rows, num_cols = matrix(rng)
    size = args['col'].numel()
    features = dict(x=floats(num_cols, H, C), a_src=floats(num_cols, H),
                    a_dst=floats(num_rows, H), a_edge=floats(size, H),
                    bias=floats(H, C))
    for name in ('a_dst', 'a_edge', 'bias'):
        if rng.random() < 0.4:
            features[name] = None
    return dict(features, **args, seed=torch.tensor([rng.getrandbits(60)]),
                negative_slope=0.2, dropout=rng.choice([0.0, 0.5]))


def attention_backward_args(rng):
    args = attention_args(rng)
    num_rows = args['rowptr'].numel() - 1
    names = ('x', 'a_src', 'a_dst', 'a_edge', 'bias')
    features = {name: args.pop(name) for name in names}
    return dict(grad_out=floats(num_rows, H, C), **features,
                out=floats(num_rows, H, C), lse=floats(num_rows, H), **args)


def transpose_args(rng):
    args, _, num_cols = matrix(rng)
    names = ('rowptr', 'col', 'perm')
    return dict({name: args[name] for name in names}, num_cols=num_cols)


def compress_args(rng):
    args, _, num_cols = matrix(rng)
    count = int(args['rowptr'][-1])
    return dict(rowptr=args['rowptr'], col=args['col'][:count].long(),
                num_cols=num_cols)


def csr_args(rng):
    num_rows, num_cols, size = (rng.randint(1, 9) for _ in range(3))
    return dict(row=torch.randint(num_rows, (size, )),
                col=torch.randint(num_cols, (size, )), num_rows=num_rows,
                num_cols=num_cols,
                num_loops=rng.choice([0, min(num_rows, num_cols)]))


def group_args(rng):
    num_groups = rng.randint(1, 9)
    return dict(index=torch.randint(num_groups, (rng.randint(0, 9), )),
                num_groups=num_groups)


def arrange_args(rng):
    size = rng.choice([0, 1, 4, 9, 9, 60])
    x = floats(size) if rng.random() < 0.7 else torch.randint(9, (size, ))
    return dict(x=x, place=torch.randperm(size).int())


restore_args = arrange_args


def soft_rank_args(rng):
    args, count, size = groups(rng)
    return dict(score=floats(size), temperature=floats(count).exp(), **args)


def soft_rank_backward_args(rng):
    args, count, size = groups(rng)
    return dict(grad=floats(size), score=floats(size),
                temperature=floats(count).exp(), ptr=args['ptr'],
                order=torch.randperm(size).int())


def rbo_args(rng):
    args, _, size = groups(rng)
    target = torch.randint(4, (size, ))
    if rng.random() < 0.5:
        target = target.float()
    return dict(rank=1 + 5 * torch.rand(size), target=target, **args,
                p=rng.choice([0.5, 1.0]))


def rbo_backward_args(rng):
    args, count, size = groups(rng)
    return dict(grad=floats(count), slope=floats(size), **args)


def temperatures_args(rng):
    args, _, size = groups(rng)
    return dict(score=floats(size), **args, temperature=0.3,
                relative=rng.random() < 0.5)


def rank_biased_agreement_args(rng):
    args, _, size = groups(rng)
    return dict(pred=torch.randint(4, (size, )).float(),
                target=torch.randint(4, (size, )), **args,
                p=rng.choice([0.5, 1.0]), ties=rng.choice('abw'))


def tie_spans_args(rng):
    args, _, size = groups(rng)
    return dict(score=torch.randint(4, (size, )).float(), **args)


# Broken ones #################################################################


def put(rng, value):
    """One number that does not belong there."""
    if value.numel() == 0:
        return value
    wild = rng.choice(WILD)
    if value.dtype == torch.int32:
        wild = min(max(wild, INT32.min), INT32.max)
    if value.is_floating_point():
        wild = rng.choice([math.nan, math.inf, -math.inf, 0.0, 1e30, -1e-40])
    value = value.clone()
    value.view(-1)[rng.randrange(value.numel())] = wild
    return value


def shorten(rng, value):
    return value[:rng.randint(0, max(0, value.size(0) - 1))]


def lengthen(rng, value):
    return torch.cat([value, value[:1], value[:1]])


def shuffle(rng, value):
    return value[torch.randperm(value.size(0))]


def spread(rng, value):
    """The same numbers, not side by side: nothing is wrong with that."""
    return torch.stack([value, value], -1)[..., 0]


def reshape(rng, value):
    return value.unsqueeze(rng.randint(0, value.dim()))


BREAKS = [put] * 6 + [shorten, lengthen, shuffle, spread, reshape]


def corrupt(rng, args):
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        name = rng.choice(list(args))
        value = args[name]
        if isinstance(value, torch.Tensor) and name != 'seed':
            args[name] = rng.choice(BREAKS)(rng, value)
        elif name.startswith('num_'):
            # (Not so many that the result would fill the memory.)
            args[name] = rng.choice([-2**63, -5, -1, 0, 1, 3])


# What is sound ###############################################################


def rises(ptr, to, at_most=False):
    values = ptr.tolist()
    return (ptr.dim() == 1 and len(values) > 0 and values[0] == 0
            and all(a <= b for a, b in zip(values, values[1:]))
            and (values[-1] <= to if at_most else values[-1] == to))


def inside(index, size, count=None):
    return index.dim() == 1 and all(0 <= i < size
                                    for i in index.tolist()[:count])


def is_matrix(rowptr, col, perm, num_cols):
    if col.dim() != 1 or not rises(rowptr, col.numel(), at_most=True):
        return False
    count = int(rowptr[-1])
    return inside(col, num_cols, count) and (
        perm is None
        or (perm.shape == col.shape and inside(perm, col.numel(), count)))


def are_places(place, size):
    return place.shape == (size, ) and inside(place, size)


def shapes_are(args, **shapes):
    return all(args[name] is None or args[name].shape == shape
               for name, shape in shapes.items())


def is_sound(op, args):
    a = args
    if op in ('spmm', 'sddmm', 'attention', 'attention_backward'):
        x, rowptr, col = a['x'], a['rowptr'], a['col']
        dims = (2, 3) if op in ('spmm', 'sddmm') else (3, )
        if x.dim() not in dims or 0 in x.shape[1:] or not is_matrix(
                rowptr, col, a['perm'], x.size(0)):
            return False
        num_rows, size = rowptr.numel() - 1, col.numel()
        rows, heads = x.shape[1:], x.shape[1:-1]
        if op == 'spmm':
            return shapes_are(a, value=(size, *heads))
        if op == 'sddmm':
            return shapes_are(a, g=(num_rows, *rows))
        good = shapes_are(a, a_src=(x.size(0), *heads), bias=rows,
                          a_dst=(num_rows, *heads), a_edge=(size, *heads))
        if op == 'attention_backward':
            good &= shapes_are(a, grad_out=(num_rows, *rows), lse=(
                num_rows, *heads), out=(num_rows, *rows))
            if a['colptr'] is not None:
                good = (good and is_matrix(a['colptr'], a['row'], a['perm_t'],
                                           num_rows)
                        and shapes_are(a, colptr=(x.size(0) + 1, ),
                                       row=(size, ))
                        and a['colptr'][-1] == rowptr[-1])
        return good
    if op == 'transpose':
        return a['num_cols'] >= 0 and is_matrix(a['rowptr'], a['col'],
                                                a['perm'], a['num_cols'])
    if op == 'compress':
        return rises(a['rowptr'], a['col'].numel()) and a[
            'num_cols'] >= 0 and inside(a['col'], a['num_cols'])
    if op == 'csr':
        return (a['row'].shape == a['col'].shape
                and 0 <= a['num_loops'] <= min(a['num_rows'], a['num_cols'])
                and inside(a['row'], a['num_rows'])
                and inside(a['col'], a['num_cols']))
    if op == 'group':
        return a['num_groups'] >= 0 and inside(a['index'], a['num_groups'])
    if op in ('arrange', 'restore'):
        return a['x'].dim() == 1 and are_places(a['place'], a['x'].numel())
    names = {'rbo': 'rank', 'rbo_backward': 'slope',
             'rank_biased_agreement': 'pred'}
    first = a[names.get(op, 'score')]
    size, count = first.numel(), a['ptr'].numel() - 1
    if first.dim() != 1 or not rises(a['ptr'], size):
        return False
    if op == 'soft_rank_backward' and not are_places(a['order'], size):
        return False
    own = {'rank_biased_agreement': dict(target=(size, )),
           'soft_rank': dict(temperature=(count, )),
           'soft_rank_backward': dict(temperature=(count, ), grad=(size, )),
           'rbo': dict(target=(size, )),
           'rbo_backward': dict(grad=(count, ))}
    return shapes_are(a, **own.get(op, {}))


def is_permutation(perm, count):
    return perm is None or len(set(perm.tolist()[:count])) == len(
        perm.tolist()[:count])


def definition(op, args):
    """What the operator is defined to return, if that says something: a
    'perm' that leads twice to one place leaves another one open."""
    a = args
    if op in ('spmm', 'sddmm'):
        count = int(a['rowptr'][-1])
        if count < a['col'].numel() or not is_permutation(a['perm'], count):
            return None
        last = (a['value'] if op == 'spmm' else a['g'], a['x'])
        return [getattr(reference, op)(a['rowptr'], a['col'], a['perm'],
                                       *last)]
    if op in ('csr', 'group') and not a.get('num_loops'):
        return getattr(graph, f'_{op}_reference')(*a.values())
    if op == 'compress':
        return graph._compress_reference(*a.values())
    if op in ('rbo', 'rbo_backward'):
        out = getattr(reference, op)(*a.values())
        return out if isinstance(out, tuple) else [out]
    if op == 'rank_biased_agreement':
        return [agreement._reference(*a.values())]
    if op == 'restore' or (op == 'arrange'
                           and is_permutation(a['place'], None)):
        return [getattr(graph, f'_{op}_reference')(*a.values())]
    return None


# The test ####################################################################

ARGS = {name[:-len('_args')]: make for name, make in list(globals().items())
        if name.endswith('_args')}


@pytest.mark.parametrize('op', ARGS)
def test_broken_structures(op):
    rng = random.Random(f'{op} {COUNT}')
    torch.manual_seed(0)
    call, refused, compared = getattr(OPS, op), 0, 0
    for i in range(COUNT // len(ARGS)):
        args = ARGS[op](rng)
        corrupt(rng, args)
        sound = is_sound(op, args)
        try:
            out = call(*args.values())
        except ValueError as error:
            assert not sound, (i, args, error)
            assert str(error).startswith("'") or 'must' in str(error)
            refused += 1
            continue
        assert sound, (i, args)
        wanted = definition(op, args)
        if wanted is not None:
            compared += 1
            out = out if isinstance(out, tuple) else [out]
            for actual, expected in zip(out, wanted):
                # float32 sums of up to 3,000 terms, in another order
                torch.testing.assert_close(actual, expected, equal_nan=True,
                                           rtol=1e-4, atol=1e-4)
    assert refused >= COUNT // len(ARGS) // 10
    if op in ('spmm', 'sddmm', 'rbo', 'csr', 'group', 'compress', 'arrange',
              'restore', 'rank_biased_agreement'):
        assert compared > 0
