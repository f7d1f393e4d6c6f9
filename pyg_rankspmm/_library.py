"""The plumbing of :mod:`torch.library`: one call defines one operator."""
from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

NAMESPACE = 'pyg_rankspmm'
LIBRARY = torch.library.Library(NAMESPACE, 'DEF')


def define(
    schema: str,
    impl: Callable,
    fake: Callable,
    backward: Optional[Callable] = None,
    setup_context: Optional[Callable] = None,
) -> Callable:
    """Defines the operator of a schema and returns the function to call.

    Args:
        schema: ``name(Tensor a, ...) -> Tensor``.
        impl: The definition in plain PyTorch; serves every device that has no
            kernel of its own.
        fake: Returns empty outputs of the right shape, dtype and device.
        backward: As in :func:`torch.library.register_autograd`.
        setup_context: As in :func:`torch.library.register_autograd`.
    """
    name = schema[:schema.index('(')]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag, ))
    LIBRARY.impl(name, impl, 'CompositeExplicitAutograd')
    torch.library.register_fake(f'{NAMESPACE}::{name}', fake, lib=LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f'{NAMESPACE}::{name}', backward,
                                        setup_context=setup_context,
                                        lib=LIBRARY)
    op = getattr(getattr(torch.ops, NAMESPACE), name).default

    def call(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(name, args)
        if not torch.compiler.is_compiling():
            _refuse_transforms(name)
        return op(*args)

    call.__name__ = name
    return call


def _refuse_tangents(name: str, args: Sequence[Any]) -> None:
    # An operator with a registered backward drops tangents without a word.
    for arg in args:
        if (isinstance(arg, Tensor)
                and forward_ad.unpack_dual(arg).tangent is not None):
            raise NotImplementedError(
                f"The operator 'pyg_rankspmm::{name}' has no forward-mode "
                f"derivative; use reverse mode ('torch.autograd.grad')")


def _refuse_transforms(name: str) -> None:
    if torch._C._functorch.maybe_current_level() is not None:
        raise NotImplementedError(
            f"The operator 'pyg_rankspmm::{name}' does not take part in the "
            f"transforms of 'torch.func' (vmap, grad, jvp ...); use "
            f"'torch.autograd.grad', and one call for a whole batch")


def double_backward(
    definition: Callable[..., Tensor],
    primals: Sequence[Optional[Tensor]],
    grad_output: Tensor,
    grads: Sequence[Optional[Tensor]],
) -> Tuple[Optional[Tensor], ...]:
    r"""The gradient of a backward pass, by autograd through the definition.

    With :math:`v = J(\mathrm{primals})^{\top} \mathrm{grad\_output}` this is
    the gradient of :math:`\sum_k \langle v_k, \mathrm{grads}_k \rangle` with
    respect to :obj:`grad_output` and to each of the :obj:`primals`.

    Args:
        definition: The function in plain, differentiable PyTorch.
        primals: Its arguments; one may be :obj:`None`.
        grad_output: The gradient that the backward pass received.
        grads: One gradient for each result of the backward pass.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [_alias(x) for x in (grad_output, *primals)]
        out = definition(*inputs[1:])
        present = [i for i, x in enumerate(inputs) if x is not None]
        wrt = [x for x in inputs if x is not None]
        first = torch.autograd.grad(out, wrt[1:], wrt[0], create_graph=True,
                                    materialize_grads=True)
        pairs = [(v, grads[i - 1]) for v, i in zip(first, present[1:])
                 if v.requires_grad and grads[i - 1] is not None]
        if not pairs:
            return (None, ) * len(inputs)
        second = dict(
            zip(
                present,
                torch.autograd.grad([v for v, _ in pairs], wrt,
                                    [grad for _, grad in pairs],
                                    create_graph=create_graph,
                                    allow_unused=True)))
        return tuple(second.get(i) for i in range(len(inputs)))


def _alias(x: Optional[Tensor]) -> Optional[Tensor]:
    # An input may depend on another one (logits on features); the alias cuts
    # that path out of the partial derivative, but not out of the graph, which
    # the third derivative needs.
    if x is None:
        return None
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
