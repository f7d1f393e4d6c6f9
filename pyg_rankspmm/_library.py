"""The plumbing of :mod:`torch.library`: one call defines one operator."""
from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

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
        return op(*args)

    call.__name__ = name
    return call


def _refuse_tangents(name: str, args: Sequence[Any]) -> None:
    # An operator with a registered backward drops tangents without a word.
    for arg in args:
        if (isinstance(arg, Tensor)
                and forward_ad.unpack_dual(arg).tangent is not None):
            raise NotImplementedError(
                f"'{name}' has no forward-mode derivative; use reverse mode "
                f"('torch.autograd.grad', 'torch.func.vjp')")


def vjp_of_definition(
    definition: Callable[..., Tensor],
    inputs: Sequence[Optional[Tensor]],
    grad: Tensor,
) -> Callable:
    raise NotImplementedError
