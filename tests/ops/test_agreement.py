"""The kernel of the overlap of two orders. What the overlap means is tested
where it is defined, in tests/metrics."""
import pytest
import torch

from pyg_rankspmm.graph import arrange, group
from pyg_rankspmm.ops.agreement import _reference, rank_biased_agreement

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


def make(num_entries, num_groups, values, dtype, target_dtype):
    index = (num_groups * torch.rand(num_entries)**2).long()
    ptr, place = group(index, num_groups)
    pred, target = (
        arrange(torch.randint(values, (num_entries, )).to(dtype), place)
        for dtype in (dtype, target_dtype))
    return pred, target, ptr


@pytest.mark.parametrize('ties', ['a', 'b', 'w'])
@pytest.mark.parametrize('p', [0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize('values', [1, 3, 200])
def test_kernel(values, p, ties):
    torch.manual_seed(0)
    for dtype in DTYPES[:3]:
        for target_dtype in DTYPES:
            args = make(300, 20, values, dtype, target_dtype)
            torch.testing.assert_close(
                rank_biased_agreement(*args, p, ties),
                _reference(*args, p, ties), rtol=1e-12, atol=1e-12,
                equal_nan=True)


@pytest.mark.parametrize('ties', ['a', 'b', 'w'])
def test_equal_orders(ties):
    # 1, and never 1.0000000000000002
    for p in (0.5, 0.98, 1.0):
        pred, _, ptr = make(5000, 20, 700, torch.float32, torch.float32)
        out = rank_biased_agreement(pred, pred, ptr, p, ties)
        if ties != 'a':
            assert (out[ptr.diff() > 0] == 1).all()
        order = torch.arange(100.0)
        out = rank_biased_agreement(order, order, torch.tensor([0, 100]), p,
                                    ties)
        assert out.tolist() == [1.0]


@pytest.mark.parametrize('ties', ['a', 'b', 'w'])
def test_broken_groups(ties):
    nan, inf = float('nan'), float('inf')
    pred = torch.tensor([1, nan, 2, 3, 4, inf, -inf])
    target = torch.tensor([1, 2, nan, 3, 3, 1, 0])
    ptr = torch.tensor([0, 2, 3, 3, 5, 7])
    for run in (rank_biased_agreement, _reference):
        out = run(pred, target, ptr, 0.9, ties)
        assert out.isnan().tolist() == [True, True, True, False, False]
        assert out[4] == 1


def test_opcheck():
    pred, target, ptr = make(50, 6, 7, torch.float64, torch.int64)
    for ties in ('a', 'b', 'w'):
        torch.library.opcheck(
            torch.ops.pyg_rankspmm.rank_biased_agreement.default,
            (pred, target, ptr, 0.9, ties))
