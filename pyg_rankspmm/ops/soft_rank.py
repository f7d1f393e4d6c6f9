"""Differentiable ranks in groups, and the overlap of rankings."""
from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from pyg_rankspmm._library import define, double_backward
from pyg_rankspmm.graph import (
    arrange,
    compact,
    group,
    index_dtype,
    restore,
)
from pyg_rankspmm.ops import reference
from pyg_rankspmm.typing import (
    as_sortable,
    check_count,
    check_dense,
    check_device,
    check_float,
    check_index,
    check_length,
    check_positive,
    check_tensor,
    describe,
    flatten,
)


def soft_rank(
    score: Tensor,
    index: Tensor,
    temperature: Union[float, Tensor],
) -> Tensor:
    r"""Ranks the entries of each group by falling score, differentiably,

    .. math::
        \hat{r}_i = 1 + \sum_{j \neq i} F \left( \frac{s_j - s_i}{\tau}
        \right), \qquad
        F(z) = \begin{cases} \frac{1}{2} e^{z} & z < 0 \\
        1 - \frac{1}{2} e^{-z} & z \geq 0 \end{cases},

    where :math:`j` runs over the group of :math:`i` and :math:`F` is the
    distribution function of the Laplace distribution, as in the `"LapSum"
    <https://arxiv.org/abs/2503.06242>`_ paper.
    Ranks count from 1, equal scores get equal ranks, and the ranks of a group
    of :math:`n` sum up to :math:`n (n + 1) / 2`.
    For :math:`\tau \to 0` they are the ordinary ones.

    Exact in :math:`\mathcal{O}(n \log n)`, without a loop over the groups.

    Args:
        score (torch.Tensor): Shape :obj:`[num_entries]`, floating point.
            bfloat16 and half, which cannot count far, give float32.
        index (torch.Tensor): The group of each entry, shape
            :obj:`[num_entries]`, integers from 0 on in any order.
        temperature (float or torch.Tensor): :math:`\tau > 0`, in units of the
            scores, or one for each group, shape :obj:`[num_groups]`.

    Returns:
        torch.Tensor: Shape :obj:`[num_entries]`.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If shapes, devices or indices do not fit, or the
            temperature is not positive.

    Example:
        >>> score = torch.tensor([0.1, 0.9, 0.5, 2.0])
        >>> index = torch.tensor([0, 0, 0, 1])
        >>> soft_rank(score, index, temperature=0.01)
        tensor([3., 1., 2., 1.])
        >>> soft_rank(score, index, temperature=10.0)
        tensor([2.0580, 1.9420, 2.0000, 1.0000])
    """
    score = flatten('score', check_float('score', score))
    index = check_groups('index', index, score, 'score')
    num_groups = count_groups('index', index)
    dtype = reference.accumulator(score.dtype)
    if isinstance(temperature, Tensor):
        if temperature.dim() == 0:
            temperature = temperature.expand(num_groups)
        check_dense('temperature', check_float('temperature', temperature))
        check_device('temperature', temperature, score.device, 'score')
        if temperature.dim() != 1 or temperature.size(0) < num_groups:
            raise ValueError(f"'temperature' must be a number or have shape "
                             f"[num_groups] with one entry for each of the "
                             f"{num_groups} groups (got "
                             f"{describe(temperature)})")
        if not bool((temperature.detach() > 0).all()):
            raise ValueError(f"'temperature' must be positive everywhere (got "
                             f"{float(temperature.min())})")
        num_groups = temperature.size(0)
        temperature = temperature.to(dtype).clamp(*_range(dtype))
    else:
        check_positive('temperature', temperature)
        index, num_groups = without_gaps(index, num_groups)
        low, high = _range(dtype)
        temperature = score.new_full((num_groups, ),
                                     min(max(temperature, low), high),
                                     dtype=dtype)
    ptr, place = group(index, num_groups)
    score = arrange(score.to(dtype), place)
    return restore(rank_groups(score, temperature, ptr), place)


def _range(dtype: torch.dtype) -> Tuple[float, float]:
    """The smallest and largest temperature that is one in this dtype."""
    return torch.finfo(dtype).tiny, torch.finfo(dtype).max


def check_groups(name: str, index: Any, score: Tensor, like: str) -> Tensor:
    """Checks the group of each entry of a vector of scores."""
    check_index(name, index)
    if index.dim() != 1:
        raise ValueError(f"'{name}' must have shape [num_edges], such as "
                         f"'edge_label_index[0]' (got {describe(index)})")
    check_length(name, index, score.size(0), like)
    check_device(name, index, score.device, like)
    return index.long()


def check_target(target: Any, pred: Tensor) -> Tensor:
    """Checks the true scores that belong to a vector of predictions."""
    target = flatten('target', check_tensor('target', target))
    if target.requires_grad:
        raise ValueError("'target' must not require a gradient; pass "
                         "'target.detach()' (the predictions come first)")
    if target.is_complex():
        raise TypeError(f"'target' must be real (got {describe(target)})")
    check_length('target', target, pred.size(0), 'pred')
    check_device('target', target, pred.device, 'pred')
    return as_sortable(target)


def without_gaps(index: Tensor, num_groups: int) -> Tuple[Tensor, int]:
    """The same groups, renumbered where empty ones would take more memory
    than the entries."""
    if num_groups <= 4 * index.numel() + 1000:
        return index, num_groups
    return compact(index), index.numel()


def count_groups(name: str, index: Tensor,
                 dim_size: Optional[int] = None) -> int:
    """The number of groups that an index counts: what the caller says, or
    one more than the largest index."""
    if dim_size is not None:
        check_count('dim_size', dim_size)
    if index.device.type == 'meta':
        raise ValueError(f"'{name}' is on device 'meta' and holds no groups")
    if index.numel() == 0:
        return dim_size or 0
    low, high = (int(bound) for bound in index.aminmax())
    if low < 0:
        raise ValueError(f"'{name}' must not be negative (got {low}); number "
                         f"the groups from 0 on")
    if dim_size is not None and high >= dim_size:
        raise ValueError(f"'{name}' must hold indices below the 'dim_size' of "
                         f"{dim_size} (got {high})")
    return high + 1 if dim_size is None else dim_size


# What follows takes entries side by side in their groups, as
# :func:`~pyg_rankspmm.graph.arrange` puts them.


def rank_groups(score: Tensor, temperature: Tensor, ptr: Tensor) -> Tensor:
    r"""As :func:`soft_rank`, with one temperature for each group."""
    return _soft_rank(score, temperature, ptr)[0]


def overlap(rank: Tensor, target: Tensor, ptr: Tensor, p: float) -> Tensor:
    r"""The Rank-Biased Overlap of each group between real-valued ranks and the
    order of :obj:`target`, shape :obj:`[num_groups]`; 1 for an empty group.

    Equal targets are averaged over all their orders (RBO^a of `"The Treatment
    of Ties in Rank-Biased Overlap" <https://arxiv.org/abs/2406.07121>`_), and
    the overlap beyond the end is extrapolated (`"A Similarity Measure for
    Indefinite Rankings" <https://doi.org/10.1145/1852102.1852106>`_).
    """
    return _rbo(rank, target, ptr, p)[0]


def temperatures(score: Tensor, ptr: Tensor, temperature: float,
                 relative: bool) -> Tensor:
    r"""The temperature of each group in units of the scores, shape
    :obj:`[num_groups]`, without a gradient; :obj:`NaN` if a score is not
    finite.

    A relative one is given in standard deviations of the scores of the group.
    """
    return _temperatures(score.detach(), ptr, temperature, relative)


def tie_spans(score: Tensor, ptr: Tensor) -> Tuple[Tensor, Tensor]:
    r"""The first and the last rank of the entries that tie with each entry
    in its group, counted from 1 by falling score, shape :obj:`[num_entries]`
    each."""
    return _tie_spans(score, ptr)


# The operators ##############################################################


def _soft_rank_reference(score: Tensor, temperature: Tensor,
                         ptr: Tensor) -> Tuple[Tensor, Tensor]:
    order, groups = reference.sort_groups(score, ptr)
    rank = reference.soft_rank(score, temperature, ptr, order, groups,
                               reference.longest_group(ptr))
    return rank, order.to(index_dtype(score.numel()))


def _soft_rank_fake(score: Tensor, temperature: Tensor,
                    ptr: Tensor) -> Tuple[Tensor, Tensor]:
    return (torch.empty_like(score),
            score.new_empty(score.numel(), dtype=index_dtype(score.numel())))


def _soft_rank_save(ctx: Any, inputs: Tuple[Any, ...],
                    output: Tuple[Tensor, Tensor]) -> None:
    score, temperature, ptr = inputs
    ctx.save_for_backward(score, temperature, ptr, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for the order


def _soft_rank_backward(ctx: Any, grad: Optional[Tensor],
                        _: Any) -> Tuple[Optional[Tensor], ...]:
    if grad is None:
        return None, None, None
    score, temperature, ptr, order = ctx.saved_tensors
    grad_score = _soft_rank_grad(grad, score, temperature, ptr, order)
    grad_temperature = None
    if ctx.needs_input_grad[1]:
        # Ranks do not change when scores and temperature grow together.
        grad_temperature = -_sum_of_moments(score, grad_score, ptr,
                                            order.long()) / temperature
    return grad_score, grad_temperature, None


def _sum_of_moments(score: Tensor, grad: Tensor, ptr: Tensor,
                    order: Tensor) -> Tensor:
    """The sum of score * grad over each group, whose grad sums to 0."""
    groups = reference.group_of(ptr, score.numel())
    score, grad = score[order], grad[order]
    # Far from 0, the differences of the scores alone carry the sum.
    score = score - score[ptr[groups]].detach()
    return score.new_zeros(ptr.numel() - 1).index_add(0, groups, score * grad)


def _soft_rank_grad_reference(grad: Tensor, score: Tensor,
                              temperature: Tensor, ptr: Tensor,
                              order: Tensor) -> Tensor:
    groups = reference.group_of(ptr, score.numel())
    return reference.soft_rank_backward(grad, score, temperature, ptr,
                                        order.long(), groups,
                                        reference.longest_group(ptr))


def _soft_rank_grad_fake(grad: Tensor, score: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(score)


def _soft_rank_grad_save(ctx: Any, inputs: Tuple[Any, ...],
                         output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _soft_rank_grad_backward(ctx: Any,
                             grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    grad_rank, score, temperature, ptr, order = ctx.saved_tensors
    order = order.long()
    groups = reference.group_of(ptr, score.numel())

    def definition(score: Tensor, temperature: Tensor) -> Tensor:
        # What is traced for a compiler cannot wait for the longest group.
        return reference.soft_rank(score, temperature, ptr, order, groups,
                                   score.numel())

    # What is not finite in a group must not reach the others, since the scan
    # of the definition multiplies across groups by 0.
    odd = (grad - grad) + (grad_rank - grad_rank) + (score - score)
    count = torch.zeros_like(ptr[1:]).index_add(0, groups,
                                                odd[order].isnan().long())
    of_group = (count > 0) | temperature.isnan()
    broken = torch.zeros_like(odd, dtype=torch.bool).index_copy(
        0, order, of_group[groups])
    grads = double_backward(definition, (score, temperature),
                            torch.where(broken, 0, grad_rank),
                            (torch.where(broken, 0, grad), None))
    return tuple(
        g if g is None else torch.where(where, torch.nan, g)
        for g, where in zip(grads, (broken, broken, of_group))) + (None, None)


def _rbo_fake(rank: Tensor, target: Tensor, ptr: Tensor,
              p: float) -> Tuple[Tensor, Tensor]:
    return rank.new_empty(ptr.numel() - 1), torch.empty_like(rank)


def _rbo_save(ctx: Any, inputs: Tuple[Any, ...],
              output: Tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[2], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for the slopes


def _rbo_backward(ctx: Any, grad: Optional[Tensor],
                  _: Any) -> Tuple[Optional[Tensor], ...]:
    if grad is None:
        return None, None, None, None
    ptr, slope = ctx.saved_tensors
    return _rbo_grad(grad, slope, ptr), None, None, None


def _rbo_grad_fake(grad: Tensor, slope: Tensor, ptr: Tensor) -> Tensor:
    return torch.empty_like(slope)


def _rbo_grad_save(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _rbo_grad_backward(ctx: Any,
                       grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    _, slope, ptr = ctx.saved_tensors
    groups = reference.group_of(ptr, slope.numel())
    total = slope.new_zeros(ptr.numel() - 1)
    # The slope is a constant: the overlap is linear between two ranks.
    return total.index_add(0, groups, grad * slope), None, None


def _temperatures_fake(score: Tensor, ptr: Tensor, temperature: float,
                       relative: bool) -> Tensor:
    return score.new_empty(ptr.numel() - 1)


def _tie_spans_reference(score: Tensor,
                         ptr: Tensor) -> Tuple[Tensor, Tensor]:
    dtype = index_dtype(score.numel())
    first, last = reference.tie_spans(score, ptr)
    return first.to(dtype), last.to(dtype)


def _tie_spans_fake(score: Tensor, ptr: Tensor) -> Tuple[Tensor, Tensor]:
    first = score.new_empty(score.numel(), dtype=index_dtype(score.numel()))
    return first, torch.empty_like(first)


_soft_rank = define(
    'soft_rank(Tensor score, Tensor temperature, Tensor ptr) -> '
    '(Tensor rank, Tensor order)', _soft_rank_reference, _soft_rank_fake,
    _soft_rank_backward, _soft_rank_save)
_soft_rank_grad = define(
    'soft_rank_backward(Tensor grad, Tensor score, Tensor temperature, '
    'Tensor ptr, Tensor order) -> Tensor', _soft_rank_grad_reference,
    _soft_rank_grad_fake, _soft_rank_grad_backward, _soft_rank_grad_save)
_rbo = define(
    'rbo(Tensor rank, Tensor target, Tensor ptr, float p) -> '
    '(Tensor rbo, Tensor slope)', reference.rbo, _rbo_fake, _rbo_backward,
    _rbo_save)
_rbo_grad = define(
    'rbo_backward(Tensor grad, Tensor slope, Tensor ptr) -> Tensor',
    reference.rbo_backward, _rbo_grad_fake, _rbo_grad_backward,
    _rbo_grad_save)
_tie_spans = define(
    'tie_spans(Tensor score, Tensor ptr) -> (Tensor first, Tensor last)',
    _tie_spans_reference, _tie_spans_fake)
_temperatures = define(
    'temperatures(Tensor score, Tensor ptr, float temperature, '
    'bool relative) -> Tensor', reference.temperatures, _temperatures_fake)
