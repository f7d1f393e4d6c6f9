"""What all operators have in common."""
import pytest
import torch
from torch.autograd import forward_ad

from pyg_rankspmm import RankingLoss, SparseGATConv, sddmm, soft_rank, spmm
from pyg_rankspmm._library import double_backward

EDGE_INDEX = torch.tensor([[0, 1, 2], [1, 2, 0]])
FUNCTIONS = {
    'spmm': lambda x: spmm(EDGE_INDEX, None, x),
    'sddmm': lambda x: sddmm(EDGE_INDEX, x, x),
    'attention': lambda x: SparseGATConv(3, 2)(x, EDGE_INDEX),
    'soft_rank': lambda x: soft_rank(x[0], EDGE_INDEX[0], 1.0),
    'rbo': lambda x: RankingLoss()(x[0], torch.rand(3), EDGE_INDEX),
}


@pytest.mark.parametrize('name', FUNCTIONS)
def test_forward_mode_is_refused(name):
    # PyTorch itself would drop the tangent without a word.
    x = torch.randn(3, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match='forward-mode'):
            FUNCTIONS[name](dual)
        FUNCTIONS[name](x)  # has no tangent


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('transform', ['grad', 'vmap'])
def test_function_transforms_are_refused(name, transform):
    x = torch.randn(2, 3, 3)
    with pytest.raises(NotImplementedError, match='torch.func'):
        if transform == 'grad':
            torch.func.grad(lambda x: FUNCTIONS[name](x).sum())(x[0])
        else:
            torch.func.vmap(FUNCTIONS[name], randomness='same')(x)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_no_gradient_is_asked_for(name):
    x = torch.randn(3, 3)
    torch.manual_seed(0)
    expected = FUNCTIONS[name](x).detach()
    for mode in (torch.no_grad(), torch.inference_mode()):
        torch.manual_seed(0)
        with mode:
            assert torch.equal(FUNCTIONS[name](x), expected)


def test_double_backward_of_a_plain_function():
    # The inputs depend on each other, and one needs no gradient.
    def definition(a, b, c):
        return (a**2 * b).sin() * c

    t = torch.randn(4, dtype=torch.float64, requires_grad=True)
    a, b, c = t**2, t.exp(), torch.randn(4, dtype=torch.float64)
    grad, *v = torch.randn(4, 4, dtype=torch.float64).unbind(0)
    grad.requires_grad_()
    actual = double_backward(definition, (a, b, c), grad, v)

    leaves = [x.detach().requires_grad_() for x in (grad, a, b, c)]
    first = torch.autograd.grad(definition(*leaves[1:]), leaves[1:],
                                leaves[0], create_graph=True)
    expected = torch.autograd.grad(first, leaves, v)
    torch.testing.assert_close(actual, expected)
