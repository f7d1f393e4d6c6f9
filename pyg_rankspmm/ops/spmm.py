"""Products with a sparse matrix whose values have a gradient."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from pyg_rankspmm import graph as G
from pyg_rankspmm._library import define
from pyg_rankspmm.graph import CSR, Graph, from_edge_index
from pyg_rankspmm.ops import reference
from pyg_rankspmm.typing import (
    Adj,
    Size,
    check_dense,
    check_device,
    check_edge_index,
    check_float,
    check_length,
    check_size,
    describe,
)


def spmm(
    edge_index: Adj,
    value: Optional[Tensor],
    x: Tensor,
    size: Size = None,
) -> Tensor:
    r"""Multiplies a sparse matrix with a dense one,

    .. math::
        \mathbf{out}_{i,h} = \sum_{e = (j \to i)} w_{e,h} \, \mathbf{x}_{j,h},

    with gradients for the values :math:`w` and for :math:`\mathbf{x}` of any
    order.
    Time and memory follow the number of edges: the gradient of :math:`w` is
    only computed where there is an edge.

    The rows of the result are the targets :obj:`edge_index[1]`, as in message
    passing. In pyGAT's order, :obj:`indices[0]` being the row, call
    :class:`SpecialSpmm`.

    Args:
        edge_index (torch.Tensor or EdgeIndex or SparseTensor): The graph, in
            any of the forms of PyG: shape :obj:`[2, num_edges]` (source,
            target), or a sparse matrix with one row for each target.
        value (torch.Tensor, optional): The values :math:`w`, shape
            :obj:`[num_edges]` or, one for each head,
            :obj:`[num_edges, heads]`, in the order of the edges in
            :obj:`edge_index`. With :obj:`None`, those of a sparse matrix that
            has its own, else ones.
        x (torch.Tensor): Shape :obj:`[num_src_nodes, channels]` or
            :obj:`[num_src_nodes, heads, channels]`, floating point. bfloat16
            and half are summed in float32.
        size ((int, int), optional): The number of source and target nodes.
            If :obj:`None`, a :obj:`[2, num_edges]` tensor is taken as square.
            (default: :obj:`None`)

    Returns:
        torch.Tensor: Shape :obj:`[num_dst_nodes, channels]` or
        :obj:`[num_dst_nodes, heads, channels]`.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If shapes, devices or indices do not fit.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1], [0, 0, 2]])
        >>> value = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> out = spmm(edge_index, value, x)
        >>> out.detach()
        tensor([[ 7., 10.],
                [ 0.,  0.],
                [ 9., 12.]])
        >>> out.sum().backward()
        >>> value.grad
        tensor([3., 7., 7.])
    """
    _check_dense('x', x)
    if value is None:
        value = G.own_value(edge_index)
    num_edges = G.num_edges(edge_index)
    check_device('edge_index', edge_index, x.device, 'x')
    if value is not None:
        value, x = _check_value(value, x, num_edges)
    size = G.infer_size(edge_index, size, x.size(0), x.size(0))
    if size[0] != x.size(0):
        raise ValueError(f"'x' must have one row for each of the {size[0]} "
                         f"source nodes (got {describe(x)})")
    return matmul(from_edge_index(edge_index, size), value, x)


def sddmm(edge_index: Adj, g: Tensor, x: Tensor) -> Tensor:
    r"""Samples a product of two dense matrices at the edges,

    .. math::
        \mathbf{out}_{e,h} = \langle \mathbf{g}_{i,h}, \mathbf{x}_{j,h}
        \rangle \quad \textrm{for each edge } e = (j \to i),

    with gradients of any order.

    Args:
        edge_index (torch.Tensor or EdgeIndex or SparseTensor): The graph, as
            in :func:`spmm`.
        g (torch.Tensor): Shape :obj:`[num_dst_nodes, channels]` or
            :obj:`[num_dst_nodes, heads, channels]`.
        x (torch.Tensor): Shape :obj:`[num_src_nodes, channels]` or
            :obj:`[num_src_nodes, heads, channels]`.

    Returns:
        torch.Tensor: Shape :obj:`[num_edges]` or :obj:`[num_edges, heads]`, in
        the order of the edges in :obj:`edge_index`.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If shapes, devices or indices do not fit.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1], [0, 0, 2]])
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> sddmm(edge_index, torch.ones(3, 2), x)
        tensor([3., 7., 7.])
    """
    _check_dense('g', g)
    _check_dense('x', x)
    if g.shape[1:] != x.shape[1:]:
        raise ValueError(f"'g' and 'x' must agree in all dimensions but the "
                         f"first (got {describe(g)} and {describe(x)})")
    check_device('edge_index', edge_index, x.device, 'x')
    check_device('g', g, x.device, 'x')
    dtype = torch.promote_types(g.dtype, x.dtype)
    size = G.infer_size(edge_index, None, x.size(0), g.size(0))
    if size != (x.size(0), g.size(0)):
        raise ValueError(f"'edge_index' has {size[0]} source and {size[1]} "
                         f"target nodes, but 'x' has {x.size(0)} rows and 'g' "
                         f"{g.size(0)}")
    graph = from_edge_index(edge_index, size)
    return _sddmm(*graph.operands(), g.to(dtype), x.to(dtype))


class SpecialSpmm(torch.nn.Module):
    r"""Multiplies a sparse matrix with a dense one, called as the module of
    the same name in pyGAT.

    It takes the place of the
    `SpecialSpmm <https://github.com/Diego999/pyGAT>`_ that many projects have
    copied, whose gradient goes through a dense matrix of :obj:`rows * cols`
    numbers and is wrong unless the matrix is square.
    Here, time and memory follow the number of entries, and the matrix may have
    any shape.

    Example:
        >>> indices = torch.tensor([[0, 0, 2], [0, 1, 1]])  # rows, columns
        >>> values = torch.tensor([1.0, 2.0, 3.0])
        >>> b = torch.tensor([[1.0], [10.0]])
        >>> SpecialSpmm()(indices, values, (3, 2), b)
        tensor([[21.],
                [ 0.],
                [30.]])
    """
    def forward(
        self,
        indices: Tensor,
        values: Tensor,
        shape: Tuple[int, int],
        b: Tensor,
    ) -> Tensor:
        r"""Runs the forward pass.

        Args:
            indices (torch.Tensor): Row and column of each entry, shape
                :obj:`[2, num_entries]`, integers. Entries at the same place
                add up.
            values (torch.Tensor): Shape :obj:`[num_entries]`.
            shape ((int, int)): Number of rows and columns.
            b (torch.Tensor): Shape :obj:`[shape[1], channels]`.

        Returns:
            torch.Tensor: Shape :obj:`[shape[0], channels]`.
        """
        check_edge_index('indices', indices)
        num_rows, num_cols = check_size('shape', tuple(shape))
        _check_dense('b', b)
        if b.size(0) != num_cols:
            raise ValueError(f"'b' must have one row for each of the "
                             f"{num_cols} columns of the sparse matrix (got "
                             f"{describe(b)})")
        return spmm(indices.flip(0), values, b, size=(num_cols, num_rows))


def matmul(graph: Graph, value: Optional[Tensor], x: Tensor) -> Tensor:
    r"""As :func:`spmm`, for a :class:`~pyg_rankspmm.graph.Graph`."""
    return _spmm(*graph.operands(), value, x)


def _check_numbers(name: str, x: Any) -> None:
    check_dense(name, check_float(name, x))
    if x.dtype.itemsize == 1:
        raise TypeError(f"'{name}' must not be in float8, which nobody can "
                        f"sum in (got {describe(x)}); convert it with "
                        f"'{name}.half()'")


def _check_dense(name: str, x: Any) -> None:
    _check_numbers(name, x)
    if x.dim() not in (2, 3):
        raise ValueError(f"'{name}' must have shape [num_nodes, channels] or "
                         f"[num_nodes, heads, channels] (got {describe(x)})")


def _check_value(value: Tensor, x: Tensor,
                 num_edges: int) -> Tuple[Tensor, Tensor]:
    _check_numbers('value', value)
    check_device('value', value, x.device, 'x')
    heads = x.shape[1:-1]
    if value.dim() == 1 and len(heads) == 1:
        value = value.unsqueeze(-1).expand(-1, heads[0])
    if value.dim() == 0 or value.shape[1:] != heads:
        raise ValueError(f"'value' must have shape [num_edges] or, for 'x' of "
                         f"shape [num_nodes, heads, channels], [num_edges, "
                         f"heads] (got {describe(value)} with 'x' "
                         f"{describe(x)})")
    check_length('value', value, num_edges, 'edge_index')
    dtype = torch.promote_types(value.dtype, x.dtype)
    return value.to(dtype), x.to(dtype)


# The operators ##############################################################

_MATRIX = ('Tensor rowptr, Tensor col, Tensor? perm, '
           'Tensor? colptr, Tensor? row, Tensor? perm_t')


def _saved(ctx: Any) -> Tuple[Graph, Any, Tensor]:
    """What a forward pass has saved: the graph, and its two operands."""
    rowptr, col, perm, colptr, row, perm_t, other, x = ctx.saved_tensors
    by_src = None if colptr is None else CSR(colptr, row, perm_t)
    graph = Graph(CSR(rowptr, col, perm), by_src, x.size(0),
                  rowptr.numel() - 1)
    return graph, other, x


def _save(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _spmm_reference(rowptr: Tensor, col: Tensor, perm: Optional[Tensor],
                    colptr: Optional[Tensor], row: Optional[Tensor],
                    perm_t: Optional[Tensor], value: Optional[Tensor],
                    x: Tensor) -> Tensor:
    return reference.spmm(rowptr, col, perm, value, x)


def _spmm_fake(rowptr: Tensor, col: Tensor, perm: Optional[Tensor],
               colptr: Optional[Tensor], row: Optional[Tensor],
               perm_t: Optional[Tensor], value: Optional[Tensor],
               x: Tensor) -> Tensor:
    return x.new_empty((rowptr.numel() - 1, ) + x.shape[1:])


def _spmm_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    graph, value, x = _saved(ctx)
    grad_value = grad_x = None
    if ctx.needs_input_grad[6]:
        grad_value = _sddmm(*graph.operands(), grad, x)
    if ctx.needs_input_grad[7]:
        grad_x = matmul(graph.transpose(), value, grad)
    return (None, ) * 6 + (grad_value, grad_x)


def _sddmm_reference(rowptr: Tensor, col: Tensor, perm: Optional[Tensor],
                     colptr: Optional[Tensor], row: Optional[Tensor],
                     perm_t: Optional[Tensor], g: Tensor,
                     x: Tensor) -> Tensor:
    return reference.sddmm(rowptr, col, perm, g, x)


def _sddmm_fake(rowptr: Tensor, col: Tensor, perm: Optional[Tensor],
                colptr: Optional[Tensor], row: Optional[Tensor],
                perm_t: Optional[Tensor], g: Tensor, x: Tensor) -> Tensor:
    return x.new_empty((col.numel(), ) + x.shape[1:-1])


def _sddmm_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    graph, g, x = _saved(ctx)
    grad_g = grad_x = None
    if ctx.needs_input_grad[6]:
        grad_g = matmul(graph, grad, x)
    if ctx.needs_input_grad[7]:
        grad_x = matmul(graph.transpose(), grad, g)
    return (None, ) * 6 + (grad_g, grad_x)


_spmm = define(f'spmm({_MATRIX}, Tensor? value, Tensor x) -> Tensor',
               _spmm_reference, _spmm_fake, _spmm_backward, _save)
_sddmm = define(f'sddmm({_MATRIX}, Tensor g, Tensor x) -> Tensor',
                _sddmm_reference, _sddmm_fake, _sddmm_backward, _save)
