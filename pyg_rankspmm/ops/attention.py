"""The attention of GAT as one operator."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from pyg_rankspmm._library import define, double_backward
from pyg_rankspmm.graph import Graph
from pyg_rankspmm.ops import reference
from pyg_rankspmm.typing import check_float, check_rate, describe


def attention(
    graph: Graph,
    x: Tensor,
    a_src: Tensor,
    a_dst: Optional[Tensor] = None,
    a_edge: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: Optional[Tensor] = None,
) -> Tensor:
    r"""Aggregates the neighbors of each node with the attention of the
    `"Graph Attention Networks" <https://arxiv.org/abs/1710.10903>`_ paper,

    .. math::
        \mathbf{out}_i = \sum_{j \to i} m_{ij} \,
        \frac{\exp(s_{ij})}{\sum_{k \to i} \exp(s_{ik})} \, \mathbf{x}_j
        + \mathbf{b}, \qquad
        s_{ij} = \mathrm{LeakyReLU}(a^{\mathrm{src}}_j + a^{\mathrm{dst}}_i +
        a^{\mathrm{edge}}_{ij}),

    separately for each head, without a message for each edge in memory:
    the backward pass computes the weights again.
    A row whose logits are all :math:`-\infty` yields the bias and passes no
    gradient.

    Args:
        graph (Graph): The edges, as
            :func:`~pyg_rankspmm.graph.from_edge_index` returns them.
        x (torch.Tensor): Shape :obj:`[num_src_nodes, heads, channels]`,
            floating point.
        a_src (torch.Tensor): Shape :obj:`[num_src_nodes, heads]`.
        a_dst (torch.Tensor, optional): Shape :obj:`[num_dst_nodes, heads]`.
        a_edge (torch.Tensor, optional): Shape :obj:`[num_edges, heads]`, in
            the caller's order of edges.
        bias (torch.Tensor, optional): Shape :obj:`[heads, channels]`.
        negative_slope (float, optional): Slope of LeakyReLU for negative
            logits. (default: :obj:`0.2`)
        dropout (float, optional): The rate at which weights are dropped.
            (default: :obj:`0.0`)
        seed (torch.Tensor, optional): Decides which weights are dropped; as
            :func:`draw_seed` returns it. (default: drawn, if needed)

    Returns:
        torch.Tensor: Shape :obj:`[num_dst_nodes, heads, channels]`, dtype of
        :obj:`x`.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If shapes do not fit, or the rate is none.

    Example:
        >>> from pyg_rankspmm.graph import from_edge_index
        >>> graph = from_edge_index(torch.tensor([[0, 1], [0, 0]]), (2, 1))
        >>> x = torch.tensor([[[1.0]], [[3.0]]])
        >>> attention(graph, x, a_src=torch.zeros(2, 1))
        tensor([[[2.]]])
    """
    _check_operands(graph, x, a_src=a_src, a_dst=a_dst, a_edge=a_edge)
    if check_rate('dropout', dropout) > 0.0 and seed is None:
        seed = draw_seed(x.device)
    out, _ = _attention(x, *_cast_logits(x, a_src, a_dst, a_edge),
                        None if bias is None else bias.to(x.dtype),
                        *graph.operands(), seed, negative_slope, dropout)
    return out


def attention_weights(
    graph: Graph,
    a_src: Tensor,
    a_dst: Optional[Tensor] = None,
    a_edge: Optional[Tensor] = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: Optional[Tensor] = None,
) -> Tensor:
    r"""The weights :math:`m_{ij} \alpha_{ij}` of :func:`attention`, shape
    :obj:`[num_edges, heads]`, in the caller's order of edges."""
    if check_rate('dropout', dropout) > 0.0 and seed is None:
        seed = draw_seed(a_src.device)
    wide, *others = _cast_logits(a_src, a_src, a_dst, a_edge)
    assert wide is not None
    alpha = reference.attention_weights(wide, others[0], others[1],
                                        *graph.by_dst, seed, negative_slope,
                                        dropout)
    return alpha.to(a_src.dtype)


def draw_seed(device: Optional[torch.device] = None) -> Tensor:
    r"""A seed for the dropout of :func:`attention`, from torch's generator:
    shape :obj:`[1]`, :obj:`torch.int64`."""
    return torch.randint(2**62, (1, ), device=device)


def _check_operands(graph: Any, x: Any, **logits: Any) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"'graph' must be a Graph (got {describe(graph)}); "
                        f"build it with 'graph.from_edge_index'")
    if check_float('x', x).dim() != 3:
        raise ValueError(f"'x' must have shape [num_src_nodes, heads, "
                         f"channels] (got {describe(x)})")
    for name, a in logits.items():
        if a is None:
            continue
        if check_float(name, a).dim() != 2 or a.size(1) != x.size(1):
            raise ValueError(f"'{name}' must have one column for each of the "
                             f"{x.size(1)} heads of 'x' (got {describe(a)})")


def _cast_logits(x: Tensor,
                 *logits: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    # Half precision is for features; a softmax over logits needs float32.
    dtype = reference.accumulator(x.dtype)
    return tuple(None if a is None else a.to(dtype) for a in logits)


# The operators ##############################################################

_INPUTS = ('Tensor x, Tensor a_src, Tensor? a_dst, Tensor? a_edge, '
           'Tensor? bias')
_GRAPH = ('Tensor rowptr, Tensor col, Tensor? perm, Tensor? colptr, '
          'Tensor? row, Tensor? perm_t')
_OPTIONS = 'Tensor? seed, float negative_slope, float dropout'


def _attention_reference(
    x: Tensor,
    a_src: Tensor,
    a_dst: Optional[Tensor],
    a_edge: Optional[Tensor],
    bias: Optional[Tensor],
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    colptr: Optional[Tensor],
    row: Optional[Tensor],
    perm_t: Optional[Tensor],
    seed: Optional[Tensor],
    negative_slope: float,
    dropout: float,
) -> Tuple[Tensor, Tensor]:
    return reference.attention(x, a_src, a_dst, a_edge, bias, rowptr, col,
                               perm, seed, negative_slope, dropout)


def _attention_fake(x: Tensor, a_src: Tensor, a_dst: Optional[Tensor],
                    a_edge: Optional[Tensor], bias: Optional[Tensor],
                    rowptr: Tensor, *args: Any) -> Tuple[Tensor, Tensor]:
    num_rows = rowptr.numel() - 1
    return (x.new_empty((num_rows, ) + x.shape[1:]),
            a_src.new_empty(num_rows, a_src.size(1)))


def _attention_save(ctx: Any, inputs: Tuple[Any, ...],
                    output: Tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.negative_slope, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _attention_backward(ctx: Any, grad_out: Optional[Tensor],
                        _: Any) -> Tuple[Optional[Tensor], ...]:
    if grad_out is None:
        return (None, ) * 14
    *inputs, seed, out, lse = ctx.saved_tensors
    features, graph = inputs[:5], inputs[5:]
    grads = _attention_grad(grad_out, *features, out, lse, *graph, seed,
                            ctx.negative_slope, ctx.dropout)
    return tuple(grad if needed else None
                 for grad, needed in zip(grads, ctx.needs_input_grad)) + (
                     (None, ) * 9)


def _attention_grad_reference(
    grad_out: Tensor,
    x: Tensor,
    a_src: Tensor,
    a_dst: Optional[Tensor],
    a_edge: Optional[Tensor],
    bias: Optional[Tensor],
    out: Tensor,
    lse: Tensor,
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    colptr: Optional[Tensor],
    row: Optional[Tensor],
    perm_t: Optional[Tensor],
    seed: Optional[Tensor],
    negative_slope: float,
    dropout: float,
) -> Tuple[Tensor, ...]:
    return reference.attention_backward(grad_out, x, a_src, a_dst, a_edge,
                                        bias, out, lse, rowptr, col, perm,
                                        seed, negative_slope, dropout)


def _attention_grad_fake(grad_out: Tensor, x: Tensor, a_src: Tensor,
                         a_dst: Optional[Tensor], a_edge: Optional[Tensor],
                         bias: Optional[Tensor],
                         *args: Any) -> Tuple[Tensor, ...]:
    return tuple(
        x.new_empty(0) if a is None else torch.empty_like(
            a, memory_format=torch.contiguous_format)
        for a in (x, a_src, a_dst, a_edge, bias))


def _attention_grad_save(ctx: Any, inputs: Tuple[Any, ...],
                         output: Any) -> None:
    *tensors, ctx.negative_slope, ctx.dropout = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _attention_grad_backward(
        ctx: Any, *grads: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    grad_out, *rest = ctx.saved_tensors
    primals, (rowptr, col, perm), seed = rest[:5], rest[7:10], rest[13]

    def definition(*features: Any) -> Tensor:
        args = (*features, rowptr, col, perm, seed, ctx.negative_slope,
                ctx.dropout)
        return reference.attention(*args)[0]

    # 'out' and 'lse' are functions of the primals: their share is in there.
    return double_backward(definition, primals, grad_out,
                           grads) + (None, ) * 11


_attention = define(
    f'attention({_INPUTS}, {_GRAPH}, {_OPTIONS}) -> (Tensor out, Tensor lse)',
    _attention_reference, _attention_fake, _attention_backward,
    _attention_save)
_attention_grad = define(
    f'attention_backward(Tensor grad_out, {_INPUTS}, Tensor out, Tensor lse, '
    f'{_GRAPH}, {_OPTIONS}) -> (Tensor grad_x, Tensor grad_a_src, '
    f'Tensor grad_a_dst, Tensor grad_a_edge, Tensor grad_bias)',
    _attention_grad_reference, _attention_grad_fake, _attention_grad_backward,
    _attention_grad_save)
