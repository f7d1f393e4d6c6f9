"""From an ``edge_index`` in any form of PyG to compressed sparse rows."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from pyg_rankspmm._library import define
from pyg_rankspmm.typing import Adj, check_edge_index, check_size, describe

_INT32_MAX = torch.iinfo(torch.int32).max
_MAX_GROUPS = 2**36  # whose pointers take half a terabyte


class CSR(NamedTuple):
    r"""A sparse matrix without its values, in compressed sparse rows.

    Row :obj:`i` holds the entries :obj:`rowptr[i]` to :obj:`rowptr[i + 1]` of
    :obj:`col` and :obj:`perm`.
    Entries from :obj:`rowptr[-1]` on belong to no row and are to be ignored:
    they are the self-loops that :func:`csr` dropped.

    Attributes:
        rowptr: Shape :obj:`[num_rows + 1]`, :obj:`torch.int64`.
        col: Column of each entry, shape :obj:`[num_entries]`,
            :obj:`torch.int32` where all sizes fit, else :obj:`torch.int64`.
        perm: Position of each entry in the caller's order of edges, shape and
            dtype of :obj:`col`, or :obj:`None` if the orders are the same.
    """
    rowptr: Tensor
    col: Tensor
    perm: Optional[Tensor]


class Graph(NamedTuple):
    r"""A graph as the operators want it.

    Attributes:
        by_dst: The edges grouped by target: rows are targets, columns are
            sources.
        by_src: The same edges grouped by source, if somebody has already
            paid for the sorting; else the backward pass does.
        num_src_nodes: Number of source nodes.
        num_dst_nodes: Number of target nodes.
    """
    by_dst: CSR
    by_src: Optional[CSR]
    num_src_nodes: int
    num_dst_nodes: int

    @property
    def num_edges(self) -> int:
        """Number of edges in the caller's order, appended self-loops too."""
        return self.by_dst.col.numel()

    def transpose(self) -> 'Graph':
        r"""The graph with all edges reversed."""
        by_src = self.by_src
        if by_src is None:
            by_src = transpose(self.by_dst, self.num_src_nodes)
        return Graph(by_src, self.by_dst, self.num_dst_nodes,
                     self.num_src_nodes)

    def operands(self) -> Tuple[Optional[Tensor], ...]:
        """The tensors that an operator takes, in the order of its schema:
        ``rowptr, col, perm, colptr, row, perm_t``."""
        return (*self.by_dst, *(self.by_src or (None, None, None)))


def num_edges(edge_index: Adj) -> int:
    r"""The number of edges of a graph in any form."""
    if isinstance(edge_index, SparseTensor):
        return edge_index.nnz()
    if isinstance(edge_index, Tensor) and is_torch_sparse_tensor(edge_index):
        return edge_index._nnz()
    return check_edge_index('edge_index', edge_index).size(1)


def own_value(edge_index: Adj) -> Optional[Tensor]:
    r"""The values that a sparse matrix carries, in the order of its edges."""
    if isinstance(edge_index, SparseTensor):
        return edge_index.storage.value()
    if not isinstance(edge_index, Tensor):
        return None
    if edge_index.layout in (torch.sparse_csr, torch.sparse_csc):
        return edge_index.values()
    if edge_index.layout == torch.sparse_coo:
        if edge_index.is_coalesced():
            return edge_index.values()
        if edge_index.requires_grad:
            raise ValueError("'edge_index' is an uncoalesced torch.sparse_coo "
                             "matrix that requires a gradient; call "
                             "'.coalesce()' on it first")
        return edge_index._values()
    return None


def infer_size(
    edge_index: Adj,
    size: Any,
    num_src_nodes: int,
    num_dst_nodes: int,
) -> Tuple[int, int]:
    r"""The number of source and target nodes: what the graph itself knows,
    else what the caller says in :obj:`size`, else the numbers given here."""
    if isinstance(size, (tuple, list)) and len(size) == 2:
        known = (num_src_nodes, num_dst_nodes)
        size = tuple(known[i] if n is None else n for i, n in enumerate(size))
    if size is not None:
        return check_size('size', size)
    if isinstance(edge_index, EdgeIndex):
        own = edge_index.sparse_size()
        return (num_src_nodes if own[0] is None else own[0],
                num_dst_nodes if own[1] is None else own[1])
    if isinstance(edge_index, SparseTensor):
        num_dst_nodes, num_src_nodes = edge_index.sparse_sizes()
    elif isinstance(edge_index, Tensor) and is_torch_sparse_tensor(edge_index):
        num_dst_nodes, num_src_nodes = edge_index.shape[:2]
    return num_src_nodes, num_dst_nodes


def from_edge_index(
    edge_index: Adj,
    size: Tuple[int, int],
    num_loops: int = 0,
) -> Graph:
    r"""Builds a :class:`Graph` from an :obj:`edge_index` in any form of PyG.

    Messages go from :obj:`edge_index[0]` (source) to :obj:`edge_index[1]`
    (target).
    Sparse matrices come transposed, as everywhere in PyG: their rows are the
    targets (:obj:`adj_t`).
    Duplicate edges are separate edges.

    Args:
        edge_index: :class:`torch.Tensor` of shape :obj:`[2, num_edges]` in
            any order, :class:`torch_geometric.EdgeIndex` (its cache is used
            and filled if it is sorted), :class:`torch_sparse.SparseTensor`,
            or a :class:`torch.sparse` COO, CSR or CSC matrix.
        size ((int, int)): The number of source and target nodes; see
            :func:`infer_size`.
        num_loops (int, optional): If positive, drops the self-loops that
            there are and gives each of the first :obj:`num_loops` targets one
            as its last entry, at the positions :obj:`num_edges + i` of the
            caller's order. Only for a :obj:`[2, num_edges]` tensor.
            (default: :obj:`0`)

    Raises:
        TypeError: If :obj:`edge_index` has none of these forms.
        ValueError: If an index is negative or not below its size.
    """
    if isinstance(edge_index, EdgeIndex):
        _check_own_size(edge_index.sparse_size(), size)
        # Sorted and compressed already; a compiler sorts again instead of
        # looking at the data.
        if (edge_index.is_sorted and num_loops == 0
                and not torch.compiler.is_compiling()):
            return _from_sorted_edge_index(edge_index, size)
        edge_index = edge_index.as_tensor()
    if isinstance(edge_index, SparseTensor):
        return _from_sparse_tensor(edge_index, size)
    if isinstance(edge_index, Tensor) and is_torch_sparse_tensor(edge_index):
        return _from_torch_sparse(edge_index, size)

    check_edge_index('edge_index', edge_index)
    num_src, num_dst = size
    src, dst = edge_index.long().unbind(0)
    by_dst = csr(dst, src, num_dst, num_src, num_loops)
    return Graph(by_dst, None, num_src, num_dst)


def _check_own_size(
    own: Tuple[Optional[int], Optional[int]],
    size: Tuple[int, int],
) -> None:
    for known, given in zip(own, size):
        if known is not None and known != given:
            raise ValueError(
                f"'edge_index' is a graph of {own[0]} source and {own[1]} "
                f"target nodes, but the size asked for is {tuple(size)}; the "
                f"rows of a sparse matrix are the targets: leave 'size' out, "
                f"or pass the transposed matrix")


def _from_sorted_edge_index(edge_index: EdgeIndex,
                            size: Tuple[int, int]) -> Graph:
    num_src, num_dst = size
    _check_sorted(edge_index, size)
    edge_index.sparse_resize_(num_src, num_dst)
    by_dst, perm = edge_index.get_csc()
    by_src, perm_t = edge_index.get_csr()
    return Graph(_compressed(by_dst, perm, num_dst, num_src),
                 _compressed(by_src, perm_t, num_src, num_dst), num_src,
                 num_dst)


def _check_sorted(edge_index: EdgeIndex, size: Tuple[int, int]) -> None:
    """PyG believes what an :class:`EdgeIndex` says of itself, and writes
    where its indices point."""
    index = edge_index.as_tensor()
    for dim, bound in enumerate(size):
        _check_bounds(f'edge_index[{dim}]', index[dim], bound)
    ordered = index[0 if edge_index.is_sorted_by_row else 1]
    if bool((ordered.diff() < 0).any()):
        raise ValueError(f"'edge_index' is not sorted by "
                         f"{edge_index.sort_order}, although it was built "
                         f"with sort_order='{edge_index.sort_order}'; use "
                         f"'EdgeIndex(...).sort_by(...)'")


def check_torch_sparse(adj_t: Tensor) -> None:
    """Checks the indices of a :class:`torch.sparse` matrix, which PyTorch and
    PyG follow without a look."""
    try:
        if adj_t.layout == torch.sparse_coo:
            torch._validate_sparse_coo_tensor_args(
                adj_t._indices(), adj_t._values(), adj_t.shape)
        elif adj_t.layout == torch.sparse_csr:
            torch._validate_sparse_csr_tensor_args(
                adj_t.crow_indices(), adj_t.col_indices(), adj_t.values(),
                adj_t.shape)
        elif adj_t.layout == torch.sparse_csc:
            torch._validate_sparse_csc_tensor_args(
                adj_t.ccol_indices(), adj_t.row_indices(), adj_t.values(),
                adj_t.shape)
    except RuntimeError as error:
        raise ValueError(f"'edge_index' is not a valid {adj_t.layout} matrix: "
                         f"{error}") from error


def check_sparse_tensor(adj_t: SparseTensor) -> None:
    """Checks what a :class:`torch_sparse.SparseTensor` was built from, which
    it follows without a look when it is asked for anything else."""
    storage, (num_rows, num_cols) = adj_t.storage, adj_t.sparse_sizes()
    row, rowptr, col = storage._row, storage._rowptr, storage._col
    _check_bounds('edge_index', col, num_cols)
    if rowptr is not None:
        _check_pointers(rowptr, col.numel())
    if row is not None:
        _check_bounds('edge_index', row, num_rows)
        if bool((row.diff() < 0).any()):
            raise ValueError("'edge_index' is a 'SparseTensor' whose rows are "
                             "not sorted, although it was built with "
                             "'is_sorted=True'")
    if (row is not None and rowptr is not None and not torch.equal(
            torch.bincount(row, minlength=num_rows), rowptr.diff())):
        raise ValueError("'edge_index' is a 'SparseTensor' whose 'row' and "
                         "'rowptr' contradict each other")


def _from_sparse_tensor(adj_t: SparseTensor, size: Tuple[int, int]) -> Graph:
    if adj_t.storage._rowptr is None:  # is made from what else is there
        check_sparse_tensor(adj_t)
    num_src, num_dst = size
    _check_own_size((adj_t.size(1), adj_t.size(0)), size)
    rowptr, col, _ = adj_t.csr()
    by_dst = _compressed((rowptr, col), None, num_dst, num_src)
    return Graph(by_dst, None, num_src, num_dst)


def _from_torch_sparse(adj_t: Tensor, size: Tuple[int, int]) -> Graph:
    num_src, num_dst = size
    _check_own_size((adj_t.size(1), adj_t.size(0)), size)
    if _num_sparse_dims(adj_t) != 2:
        raise ValueError(f"'edge_index' must be one matrix of targets and "
                         f"sources (got {describe(adj_t)})")
    if adj_t.layout == torch.sparse_csr:
        by_dst = _compressed((adj_t.crow_indices(), adj_t.col_indices()),
                             None, num_dst, num_src)
        return Graph(by_dst, None, num_src, num_dst)
    if adj_t.layout == torch.sparse_csc:
        by_src = _compressed((adj_t.ccol_indices(), adj_t.row_indices()),
                             None, num_src, num_dst)
        return Graph(transpose(by_src, num_dst), by_src, num_src, num_dst)
    dst, src = adj_t._indices().unbind(0)
    return Graph(csr(dst, src, num_dst, num_src), None, num_src, num_dst)


def _num_sparse_dims(adj_t: Tensor) -> int:
    if adj_t.layout == torch.sparse_coo:
        return adj_t.sparse_dim()
    return adj_t.dim() - adj_t.dense_dim()


def _compressed(
    matrix: Tuple[Tensor, Tensor],
    perm: Optional[Tensor],
    num_rows: int,
    num_cols: int,
) -> CSR:
    """Takes over what somebody else has compressed: checked, and with short
    indices where they fit."""
    rowptr, col = matrix
    if rowptr.numel() != num_rows + 1:
        raise ValueError(f"'edge_index' has {rowptr.numel() - 1} compressed "
                         f"rows, but its size asks for {num_rows}")
    rowptr, col = _compress(rowptr, col, num_cols)
    return CSR(rowptr, col, perm if perm is None else perm.to(
        col.dtype, copy=True))  # the cached one may be an inference tensor


# The operators ##############################################################


def csr(
    row: Tensor,
    col: Tensor,
    num_rows: int,
    num_cols: int,
    num_loops: int = 0,
) -> CSR:
    r"""Groups the entries of a matrix by row, in a stable order.

    Args:
        row: Row of each entry, shape :obj:`[E]`, :obj:`torch.int64`.
        col: Column of each entry, shape :obj:`[E]`, :obj:`torch.int64`.
        num_rows: Number of rows.
        num_cols: Number of columns.
        num_loops: If positive, entries with equal row and column are dropped
            and row :obj:`i < num_loops` gets the entry :obj:`(i, i)` at its
            end, as number :obj:`E + i` of the caller's order.
    """
    return CSR(*_csr(row, col, num_rows, num_cols, num_loops))


def group(index: Tensor, num_groups: int) -> Tuple[Tensor, Tensor]:
    r"""Where entries stand when they are sorted by group, in a stable order.

    Args:
        index: Group of each entry, shape :obj:`[E]`, :obj:`torch.int64`.
        num_groups: Number of groups.

    Returns:
        :obj:`ptr` and :obj:`place`: group :obj:`g` takes the places
        :obj:`ptr[g]` to :obj:`ptr[g + 1]`, and entry :obj:`e` the place
        :obj:`place[e]`. See :func:`arrange`.

    Raises:
        ValueError: If an index is negative or not below :obj:`num_groups`, or
            these are too many for any memory.
    """
    if not torch.compiler.is_compiling() and num_groups > _MAX_GROUPS:
        raise ValueError(f"There cannot be {num_groups} groups; number them "
                         f"from 0 on ('torch.unique(..., return_inverse="
                         f"True)')")
    return _group(index, num_groups)


def arrange(x: Tensor, place: Tensor) -> Tensor:
    r"""The entries of :obj:`x`, shape :obj:`[E]`, side by side in their
    groups: :obj:`out[place[e]] = x[e]`.

    In a large array of edges in any order, each entry of a group is on a cache
    line of its own. Entries that were put in order once are read in order
    from then on.
    """
    return _arrange(x, place)


def restore(x: Tensor, place: Tensor) -> Tensor:
    r"""The inverse of :func:`arrange`: :obj:`out[e] = x[place[e]]`."""
    return _restore(x, place)


def compact(index: Tensor) -> Tensor:
    r"""Renumbers the groups of an :obj:`index` from 0 on, in the same order,
    without empty ones."""
    return _compact(index)


def transpose(matrix: CSR, num_cols: int) -> CSR:
    r"""The transposed matrix; :obj:`perm` still leads to the caller's order.
    """
    return CSR(*_transpose(*matrix, num_cols))


def index_dtype(*sizes: int) -> torch.dtype:
    """The shortest of int32 and int64 that counts to all ``sizes``."""
    # (A compiler would compile again whenever another one is the largest.)
    short = all(size <= _INT32_MAX for size in sizes)
    return torch.int32 if short else torch.int64


def entries(
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
) -> Tuple[Tensor, Tensor, Tensor]:
    r"""Row, column and position in the caller's order of each entry of a
    :class:`CSR`, as :obj:`torch.int64`; the dropped entries are in the row
    behind the last one."""
    position = torch.arange(col.numel(), device=col.device)
    row = torch.searchsorted(rowptr, position, right=True) - 1
    return row, col.long(), position if perm is None else perm.long()


def _check_bounds(what: str, index: Tensor, size: int) -> None:
    if index.numel() == 0:
        return
    low, high = (int(bound) for bound in index.aminmax())
    if low < 0 or high >= size:
        raise ValueError(f"'{what}' must hold indices from 0 to {size - 1} "
                         f"(got {low if low < 0 else high})")


def _check_pointers(rowptr: Tensor, num_edges: int) -> None:
    if (rowptr.numel() == 0 or int(rowptr[0]) != 0
            or int(rowptr[-1]) != num_edges
            or bool((rowptr.diff() < 0).any())):
        raise ValueError("'edge_index' is not a valid compressed matrix: its "
                         "row pointers must rise from 0 to the number of "
                         "edges")


def _csr_reference(row: Tensor, col: Tensor, num_rows: int, num_cols: int,
                   num_loops: int) -> Tuple[Tensor, Tensor, Tensor]:
    _check_bounds('edge_index[1]', row, num_rows)
    _check_bounds('edge_index[0]', col, num_cols)
    if num_loops > min(num_rows, num_cols):
        raise ValueError(f"'num_loops' must be at most "
                         f"{min(num_rows, num_cols)} (got {num_loops})")
    if num_loops > 0:
        loop = torch.arange(num_loops, device=row.device)
        row = torch.where(row == col, num_rows, row)  # behind the last row
        row, col = torch.cat([row, loop]), torch.cat([col, loop])
    ptr, perm = _sort(row, num_rows)
    dtype = index_dtype(num_rows, num_cols, row.numel())
    return ptr, col[perm].to(dtype), perm.to(dtype)


def _group_reference(index: Tensor,
                     num_groups: int) -> Tuple[Tensor, Tensor]:
    _check_bounds('index', index, num_groups)
    ptr, perm = _sort(index, num_groups)
    place = torch.empty_like(perm)
    place[perm] = torch.arange(perm.numel(), device=perm.device)
    return ptr, place.to(index_dtype(index.numel()))


def _arrange_reference(x: Tensor, place: Tensor) -> Tensor:
    return torch.zeros_like(x).index_copy(0, place.long(), x)


def _restore_reference(x: Tensor, place: Tensor) -> Tensor:
    return x[place.long()]


def _moved_fake(x: Tensor, place: Tensor) -> Tensor:
    return torch.empty_like(x)


def _moved_save(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _arrange_backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None]:
    return restore(grad, *ctx.saved_tensors), None


def _restore_backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None]:
    return arrange(grad, *ctx.saved_tensors), None


def _compact_reference(index: Tensor) -> Tensor:
    if index.numel() > 0 and int(index.min()) < 0:
        raise ValueError(f"The index of a group must not be negative (got "
                         f"{int(index.min())})")
    return torch.unique(index, return_inverse=True)[1]


def _sort(index: Tensor, num_groups: int) -> Tuple[Tensor, Tensor]:
    index, perm = torch.sort(index, stable=True)
    groups = torch.arange(num_groups + 1, device=index.device)
    return torch.searchsorted(index, groups), perm


def _transpose_reference(
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    num_cols: int,
) -> Tuple[Tensor, Tensor, Tensor]:
    row, key, edge = entries(rowptr, col, perm)
    key = torch.where(row < rowptr.numel() - 1, key, num_cols)
    colptr, order = _sort(key, num_cols)
    row = torch.where(key < num_cols, row, 0)
    return colptr, row[order].to(col.dtype), edge[order].to(col.dtype)


def _compress_reference(rowptr: Tensor, col: Tensor,
                        num_cols: int) -> Tuple[Tensor, Tensor]:
    _check_bounds('edge_index', col, num_cols)
    _check_pointers(rowptr, col.numel())
    dtype = index_dtype(rowptr.numel(), num_cols, col.numel())
    # An operator may not return its input.
    return rowptr.long().clone(), col.to(dtype, copy=True)


def _csr_fake(row: Tensor, col: Tensor, num_rows: int, num_cols: int,
              num_loops: int) -> Tuple[Tensor, Tensor, Tensor]:
    count = row.numel() + num_loops
    dtype = index_dtype(num_rows, num_cols, count)
    return (row.new_empty(num_rows + 1), row.new_empty(count, dtype=dtype),
            row.new_empty(count, dtype=dtype))


def _group_fake(index: Tensor, num_groups: int) -> Tuple[Tensor, Tensor]:
    dtype = index_dtype(index.numel())
    return (index.new_empty(num_groups + 1, dtype=torch.int64),
            index.new_empty(index.numel(), dtype=dtype))


def _transpose_fake(
    rowptr: Tensor,
    col: Tensor,
    perm: Optional[Tensor],
    num_cols: int,
) -> Tuple[Tensor, Tensor, Tensor]:
    return (rowptr.new_empty(num_cols + 1), torch.empty_like(col),
            torch.empty_like(col))


def _compress_fake(rowptr: Tensor, col: Tensor,
                   num_cols: int) -> Tuple[Tensor, Tensor]:
    dtype = index_dtype(rowptr.numel(), num_cols, col.numel())
    return (torch.empty_like(rowptr, dtype=torch.int64),
            torch.empty_like(col, dtype=dtype))


_csr = define(
    'csr(Tensor row, Tensor col, SymInt num_rows, SymInt num_cols, '
    'SymInt num_loops) -> (Tensor rowptr, Tensor col, Tensor perm)',
    _csr_reference,
    _csr_fake,
)
_group = define(
    'group(Tensor index, SymInt num_groups) -> (Tensor ptr, Tensor place)',
    _group_reference,
    _group_fake,
)
_arrange = define('arrange(Tensor x, Tensor place) -> Tensor',
                  _arrange_reference, _moved_fake, _arrange_backward,
                  _moved_save)
_restore = define('restore(Tensor x, Tensor place) -> Tensor',
                  _restore_reference, _moved_fake, _restore_backward,
                  _moved_save)
_compact = define('compact(Tensor index) -> Tensor', _compact_reference,
                  torch.empty_like)
_transpose = define(
    'transpose(Tensor rowptr, Tensor col, Tensor? perm, SymInt num_cols) -> '
    '(Tensor colptr, Tensor row, Tensor perm_t)',
    _transpose_reference,
    _transpose_fake,
)
_compress = define(
    'compress(Tensor rowptr, Tensor col, SymInt num_cols) -> '
    '(Tensor rowptr, Tensor col)',
    _compress_reference,
    _compress_fake,
)
