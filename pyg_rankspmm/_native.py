r"""The compiled kernels: the one place that knows whether they exist.

Importing this module puts them under the operators, on CPU tensors.
The functions here have the signatures of the operators. They check what C++
cannot see (dtypes, shapes, devices), and hand over what the kernels do not
take (64-bit indices, mixed dtypes, nothing to compute) to the definition in
plain PyTorch. C++ checks the contents of the structures.

Environment variables, read at the import:

- :obj:`PYG_RANKSPMM_KERNELS=0` leaves the kernels out.
- :obj:`PYG_RANKSPMM_SIMD` asks for one of the levels of :func:`simd_levels`.
"""
from __future__ import annotations

import importlib
import os
import warnings
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import Tensor

from pyg_rankspmm import graph as G
from pyg_rankspmm._library import LIBRARY
from pyg_rankspmm.ops import agreement, reference
from pyg_rankspmm.ops.attention import (
    _attention_grad_reference,
    _attention_reference,
)
from pyg_rankspmm.ops.soft_rank import (
    _soft_rank_grad_reference,
    _soft_rank_reference,
    _tie_spans_reference,
)
from pyg_rankspmm.ops.spmm import _sddmm_reference, _spmm_reference
from pyg_rankspmm.typing import describe, out_of_range

_C: Any
try:
    _C = importlib.import_module('pyg_rankspmm._C')
except ModuleNotFoundError:
    _C = None
except ImportError as error:
    warnings.warn(f"The compiled kernels of 'pyg_rankspmm' are there, but "
                  f"cannot be loaded: {error}", stacklevel=2)
    _C = None

_WANTED = os.environ.get('PYG_RANKSPMM_KERNELS') or '1'
if _WANTED not in ('0', '1'):
    raise ValueError(f"The environment variable PYG_RANKSPMM_KERNELS must be "
                     f"0 or 1 (got {_WANTED!r})")

_SUFFIX = {torch.float32: '_f32', torch.float64: '_f64'}
_HALF = (torch.bfloat16, torch.float16)


def is_installed() -> bool:
    """Whether the package was installed with its kernels."""
    return _C is not None


def is_available() -> bool:
    """Whether the kernels run under the operators."""
    return is_installed() and _WANTED == '1'


def has_openmp() -> bool:
    """Whether the kernels can use more than one thread."""
    return _C is not None and _C.has_openmp()


def simd_levels() -> List[str]:
    """The instruction sets that this processor can run, best first."""
    return [] if _C is None else _C.levels()


def simd_level() -> Optional[str]:
    """The instruction set in use."""
    return None if _C is None else _C.level()


def set_simd_level(name: str) -> None:
    """Makes the kernels use one of :func:`simd_levels`."""
    if _C is None:
        raise RuntimeError("pyg_rankspmm was installed without its kernels")
    if name not in simd_levels():
        raise ValueError(f"There is no SIMD level {name!r} on this processor; "
                         f"set PYG_RANKSPMM_SIMD to one of "
                         f"{', '.join(simd_levels())}, or leave it unset")
    _C.set_level(name)


# Arguments ###################################################################


def _check(name: str, value: Optional[Tensor], shape: Tuple[int, ...],
           dtype: torch.dtype) -> None:
    if value is None:
        return
    if value.shape != shape or value.dtype != dtype or not value.is_cpu:
        raise ValueError(f"'{name}' must be a {dtype} CPU tensor of shape "
                         f"{list(shape)} (got {describe(value)} on "
                         f"'{value.device}')")


def _ptr(value: Optional[Tensor]) -> int:
    return 0 if value is None else value.data_ptr()


def _contiguous(*values: Optional[Tensor]) -> Tuple[Any, ...]:
    # The caller must keep them while the kernel reads them.
    return tuple(None if value is None else value.contiguous()
                 for value in values)


class _Matrix:
    """A CSR as the kernels want it."""
    def __init__(self, rowptr: Tensor, col: Tensor, perm: Optional[Tensor],
                 num_cols: int, name: str = 'rowptr') -> None:
        _check(name, rowptr, (rowptr.numel(), ), torch.int64)
        _check('col', col, (col.numel(), ), torch.int32)
        _check('perm', perm, (col.numel(), ), torch.int32)
        if rowptr.numel() == 0:
            raise ValueError(f"'{name}' must not be empty")
        self.tensors = _contiguous(rowptr, col, perm)
        self.num_rows = rowptr.numel() - 1
        self.num_entries = col.numel()
        self.args = (*map(_ptr, self.tensors), self.num_rows, num_cols,
                     self.num_entries)


def _heads(x: Tensor) -> Tuple[int, int]:
    """Heads and channels of [N, C] or [N, H, C]."""
    return (1, x.size(1)) if x.dim() == 2 else (x.size(1), x.size(2))


def _check_dims(x: Tensor, *dims: int) -> None:
    if x.dim() not in dims:
        raise ValueError(f"'x' must have {' or '.join(map(str, dims))} "
                         f"dimensions (got {describe(x)})")


def _takes(col: Tensor, x: Tensor, *values: Optional[Tensor]) -> bool:
    """Whether the kernels take these operands, the first of which has
    heads and channels."""
    if col.dtype != torch.int32 or x.dtype not in _SUFFIX:
        return False
    if x.size(1) == 0 or x.size(-1) == 0:
        return False
    return all(value is None or value.dtype == x.dtype for value in values)


def _float(*values: Optional[Tensor]) -> Tuple[Any, ...]:
    return tuple(
        value.float() if value is not None and value.dtype in _HALF else value
        for value in values)


# Sparse products #############################################################


def _spmm(rowptr: Tensor, col: Tensor, perm: Optional[Tensor],
          colptr: Optional[Tensor], row: Optional[Tensor],
          perm_t: Optional[Tensor], value: Optional[Tensor],
          x: Tensor) -> Tensor:
    _check_dims(x, 2, 3)
    if x.dtype in _HALF:
        value_, x_ = _float(value, x)
        return _spmm(rowptr, col, perm, None, None, None, value_,
                     x_).to(x.dtype)
    if not _takes(col, x, value):
        return _spmm_reference(rowptr, col, perm, colptr, row, perm_t, value,
                                 x)
    heads, channels = _heads(x)
    if value is None:
        heads, channels = 1, heads * channels
    matrix = _Matrix(rowptr, col, perm, x.size(0))
    _check('value', value, (matrix.num_entries, ) + x.shape[1:-1], x.dtype)
    value_, x_ = _contiguous(value, x)
    out = x.new_empty((matrix.num_rows, ) + x.shape[1:])
    _kernel('spmm', x.dtype)(matrix.args, heads, channels, _ptr(value_),
                             _ptr(x_), _ptr(out), torch.get_num_threads())
    return out


def _sddmm(rowptr: Tensor, col: Tensor, perm: Optional[Tensor],
           colptr: Optional[Tensor], row: Optional[Tensor],
           perm_t: Optional[Tensor], g: Tensor, x: Tensor) -> Tensor:
    _check_dims(x, 2, 3)
    if x.dtype in _HALF:
        g_, x_ = _float(g, x)
        return _sddmm(rowptr, col, perm, None, None, None, g_, x_).to(x.dtype)
    if not _takes(col, x, g):
        return _sddmm_reference(rowptr, col, perm, colptr, row, perm_t, g, x)
    heads, channels = _heads(x)
    matrix = _Matrix(rowptr, col, perm, x.size(0))
    _check('g', g, (matrix.num_rows, ) + x.shape[1:], x.dtype)
    g_, x_ = _contiguous(g, x)
    out = x.new_empty((matrix.num_entries, ) + x.shape[1:-1])
    _kernel('sddmm', x.dtype)(matrix.args, heads, channels, _ptr(g_),
                              _ptr(x_), _ptr(out), torch.get_num_threads())
    return out


# Attention ###################################################################


def _check_attention(matrix: _Matrix, x: Tensor, a_src: Tensor,
                     a_dst: Optional[Tensor], a_edge: Optional[Tensor],
                     bias: Optional[Tensor], seed: Optional[Tensor],
                     dropout: float) -> int:
    num_src, heads, channels = x.shape
    _check('a_src', a_src, (num_src, heads), x.dtype)
    _check('a_dst', a_dst, (matrix.num_rows, heads), x.dtype)
    _check('a_edge', a_edge, (matrix.num_entries, heads), x.dtype)
    _check('bias', bias, (heads, channels), x.dtype)
    if dropout <= 0.0:
        return 0
    if seed is None:
        raise ValueError("'seed' must be given where 'dropout' is not 0")
    return int(seed)


def _attention(
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
    _check_dims(x, 3)
    if x.dtype in _HALF:
        x_, bias_ = _float(x, bias)
        out, lse = _attention(x_, a_src, a_dst, a_edge, bias_, rowptr, col,
                              perm, None, None, None, seed, negative_slope,
                              dropout)
        return out.to(x.dtype), lse
    if not _takes(col, x, a_src, a_dst, a_edge, bias):
        return _attention_reference(x, a_src, a_dst, a_edge, bias, rowptr,
                                      col, perm, colptr, row, perm_t, seed,
                                      negative_slope, dropout)
    matrix = _Matrix(rowptr, col, perm, x.size(0))
    number = _check_attention(matrix, x, a_src, a_dst, a_edge, bias, seed,
                              dropout)
    inputs = _contiguous(x, a_src, a_dst, a_edge, bias)
    _, heads, channels = x.shape
    out = x.new_empty(matrix.num_rows, heads, channels)
    lse = x.new_empty(matrix.num_rows, heads)
    _kernel('attention', x.dtype)(matrix.args, heads, channels,
                                  *map(_ptr, inputs), negative_slope, dropout,
                                  number, _ptr(out), _ptr(lse),
                                  torch.get_num_threads())
    return out, lse


def _attention_backward(
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
    _check_dims(x, 3)
    if x.dtype in _HALF:
        grad_out_, x_, bias_, out_ = _float(grad_out, x, bias, out)
        grads = _attention_backward(grad_out_, x_, a_src, a_dst, a_edge, bias_,
                                    out_, lse, rowptr, col, perm, colptr, row,
                                    perm_t, seed, negative_slope, dropout)
        return (grads[0].to(x.dtype), *grads[1:4], grads[4].to(x.dtype))
    if not _takes(col, x, a_src, a_dst, a_edge, bias, grad_out, out, lse):
        return _attention_grad_reference(grad_out, x, a_src, a_dst, a_edge,
                                           bias, out, lse, rowptr, col, perm,
                                           colptr, row, perm_t, seed,
                                           negative_slope, dropout)
    matrix = _Matrix(rowptr, col, perm, x.size(0))
    number = _check_attention(matrix, x, a_src, a_dst, a_edge, bias, seed,
                              dropout)
    _, heads, channels = x.shape
    for name, value in (('grad_out', grad_out), ('out', out)):
        _check(name, value, (matrix.num_rows, heads, channels), x.dtype)
    _check('lse', lse, (matrix.num_rows, heads), x.dtype)
    transposed = None
    if colptr is not None and row is not None:
        transposed = _Matrix(colptr, row, perm_t, matrix.num_rows, 'colptr')
        _check('colptr', colptr, (x.size(0) + 1, ), torch.int64)
        _check('row', row, (matrix.num_entries, ), torch.int32)
    inputs = _contiguous(x, a_src, a_dst, a_edge, bias)
    saved = _contiguous(out, lse, grad_out)
    grads = tuple(
        x.new_empty(0) if value is None else torch.empty_like(value)
        for value in inputs)
    _kernel('attention_grad', x.dtype)(
        matrix.args, () if transposed is None else transposed.args, heads,
        channels, *map(_ptr, inputs), negative_slope, dropout, number,
        *map(_ptr, saved), *map(_ptr, grads), torch.get_num_threads())
    return grads


# Structures ##################################################################


def _refuse(what: str, size: int, bounds: Tuple[str, int, int]) -> None:
    _, low, high = bounds
    raise out_of_range(what, size, low if low < 0 else high)


def _fits(*sizes: int) -> bool:
    if min(sizes) < 0:
        raise ValueError(f"Sizes must not be negative (got {min(sizes)})")
    return G.index_dtype(*sizes) == torch.int32


def _csr(row: Tensor, col: Tensor, num_rows: int, num_cols: int,
         num_loops: int) -> Tuple[Tensor, Tensor, Tensor]:
    count = row.numel() + num_loops
    if (not _fits(num_rows, num_cols, num_loops, count)
            or num_loops > min(num_rows, num_cols)):
        return G._csr_reference(row, col, num_rows, num_cols, num_loops)
    _check('row', row, (row.numel(), ), torch.int64)
    _check('col', col, (row.numel(), ), torch.int64)
    row_, col_ = _contiguous(row, col)
    rowptr = row.new_empty(num_rows + 1)
    index = row.new_empty(count, dtype=torch.int32)
    perm = torch.empty_like(index)
    bounds = _C.csr(_ptr(row_), _ptr(col_), row.numel(), num_rows, num_cols,
                    num_loops, _ptr(rowptr), _ptr(index), _ptr(perm),
                    torch.get_num_threads())
    if bounds is not None:
        if bounds[0] == 'row':
            _refuse('edge_index[1]', num_rows, bounds)
        _refuse('edge_index[0]', num_cols, bounds)
    return rowptr, index, perm


def _group(index: Tensor, num_groups: int) -> Tuple[Tensor, Tensor]:
    # (Any number of groups fits; it must not be negative.)
    if (not _fits(index.numel(), min(num_groups, 0))
            or index.dtype != torch.int64):
        return G._group_reference(index, num_groups)
    _check('index', index, (index.numel(), ), torch.int64)
    index_, = _contiguous(index)
    ptr = index.new_empty(num_groups + 1)
    place = index.new_empty(index.numel(), dtype=torch.int32)
    bounds = _C.group(_ptr(index_), index.numel(), num_groups, _ptr(ptr),
                      _ptr(place), torch.get_num_threads())
    if bounds is not None:
        _refuse('index', num_groups, bounds)
    return ptr, place


def _moves(x: Tensor, place: Tensor) -> bool:
    return x.dtype.itemsize in (4, 8) and place.dtype == torch.int32


def _move(kernel: str, x: Tensor, place: Tensor, out: Tensor) -> Tensor:
    _check('place', place, (x.numel(), ), torch.int32)
    _check('x', x, (x.numel(), ), x.dtype)
    x_, place_ = _contiguous(x, place)
    getattr(_C, kernel)(_ptr(x_), _ptr(place_), x.numel(), x.dtype.itemsize,
                        _ptr(out), torch.get_num_threads())
    return out


def _arrange(x: Tensor, place: Tensor) -> Tensor:
    if not _moves(x, place):
        return G._arrange_reference(x, place)
    return _move('arrange', x, place, torch.empty_like(
        x, memory_format=torch.contiguous_format))


def _restore(x: Tensor, place: Tensor) -> Tensor:
    if not _moves(x, place):
        return G._restore_reference(x, place)
    return _move('restore', x, place, torch.empty_like(
        x, memory_format=torch.contiguous_format))


def _transpose(rowptr: Tensor, col: Tensor, perm: Optional[Tensor],
               num_cols: int) -> Tuple[Tensor, Tensor, Tensor]:
    if col.dtype != torch.int32 or not _fits(num_cols):
        return G._transpose_reference(rowptr, col, perm, num_cols)
    matrix = _Matrix(rowptr, col, perm, num_cols)
    colptr = rowptr.new_empty(num_cols + 1)
    row, perm_t = torch.empty_like(col), torch.empty_like(col)
    _C.transpose(matrix.args, _ptr(colptr), _ptr(row), _ptr(perm_t),
                 torch.get_num_threads())
    return colptr, row, perm_t


def _compress(rowptr: Tensor, col: Tensor,
              num_cols: int) -> Tuple[Tensor, Tensor]:
    if (rowptr.dtype != torch.int64 or col.dtype != torch.int64
            or rowptr.numel() == 0
            or not _fits(rowptr.numel(), num_cols, col.numel())):
        return G._compress_reference(rowptr, col, num_cols)
    _check('rowptr', rowptr, (rowptr.numel(), ), torch.int64)
    _check('col', col, (col.numel(), ), torch.int64)
    rowptr_, col_ = _contiguous(rowptr, col)
    index = torch.empty_like(col_, dtype=torch.int32)
    bounds = _C.compress(_ptr(rowptr_), rowptr.numel() - 1, _ptr(col_),
                         col.numel(), num_cols, _ptr(index),
                         torch.get_num_threads())
    if bounds is not None:
        _refuse('edge_index', num_cols, bounds)
    return rowptr.clone(), index


# Ranking #####################################################################

_INT64_MIN = torch.iinfo(torch.int64).min
_TARGET_SUFFIX = {**_SUFFIX, torch.int64: '_i64'}


class _Groups:
    """Entries side by side in groups, as the kernels want them."""
    def __init__(self, ptr: Tensor, size: int) -> None:
        _check('ptr', ptr, (ptr.numel(), ), torch.int64)
        if ptr.numel() == 0:
            raise ValueError("'ptr' must not be empty")
        self.ptr = ptr.contiguous()
        self.num_groups = ptr.numel() - 1
        self.args = (_ptr(self.ptr), self.num_groups, size)


def _takes_scores(score: Tensor) -> bool:
    return score.dtype in _SUFFIX and _fits(score.numel())


def _soft_rank(score: Tensor, temperature: Tensor,
               ptr: Tensor) -> Tuple[Tensor, Tensor]:
    if not _takes_scores(score):
        return _soft_rank_reference(score, temperature, ptr)
    groups = _Groups(ptr, score.numel())
    _check('score', score, (score.numel(), ), score.dtype)
    _check('temperature', temperature, (groups.num_groups, ), score.dtype)
    score_, temperature_ = _contiguous(score, temperature)
    rank = torch.empty_like(score_)
    order = score.new_empty(score.numel(), dtype=torch.int32)
    _kernel('soft_rank', score.dtype)(groups.args, _ptr(score_),
                                      _ptr(temperature_), _ptr(rank),
                                      _ptr(order), torch.get_num_threads())
    return rank, order


def _soft_rank_backward(grad: Tensor, score: Tensor, temperature: Tensor,
                        ptr: Tensor, order: Tensor) -> Tensor:
    if not _takes_scores(score) or order.dtype != torch.int32:
        return _soft_rank_grad_reference(grad, score, temperature, ptr,
                                           order)
    groups = _Groups(ptr, score.numel())
    _check('order', order, (score.numel(), ), torch.int32)
    _check('score', score, (score.numel(), ), score.dtype)
    _check('grad', grad, (score.numel(), ), score.dtype)
    _check('temperature', temperature, (groups.num_groups, ), score.dtype)
    inputs = _contiguous(order, grad, score, temperature)
    out = torch.empty_like(inputs[2])
    _kernel('soft_rank_grad', score.dtype)(groups.args, *map(_ptr, inputs),
                                           _ptr(out), torch.get_num_threads())
    return out


def _comparable(target: Tensor) -> Tensor:
    """The target in a dtype that the kernels compare; none is rounded."""
    if target.dtype in _TARGET_SUFFIX:
        return target.contiguous()
    if target.is_floating_point():
        return target.float().contiguous()
    if target.dtype == torch.uint64:  # in the order of its numbers
        return target.contiguous().view(torch.int64) ^ _INT64_MIN
    return target.long().contiguous()


def _rbo(rank: Tensor, target: Tensor, ptr: Tensor,
         p: float) -> Tuple[Tensor, Tensor]:
    if not _takes_scores(rank):
        return reference.rbo(rank, target, ptr, p)
    groups = _Groups(ptr, rank.numel())
    _check('rank', rank, (rank.numel(), ), rank.dtype)
    _check('target', target, (rank.numel(), ), target.dtype)
    rank_, target_ = rank.contiguous(), _comparable(target)
    out, slope = rank.new_empty(groups.num_groups), torch.empty_like(rank_)
    kernel = _kernel('rbo' + _SUFFIX[rank.dtype], target_.dtype)
    kernel(groups.args, _ptr(rank_), _ptr(target_), p, _ptr(out), _ptr(slope),
           torch.get_num_threads())
    return out, slope


def _rbo_backward(grad: Tensor, slope: Tensor, ptr: Tensor) -> Tensor:
    if not _takes_scores(slope):
        return reference.rbo_backward(grad, slope, ptr)
    groups = _Groups(ptr, slope.numel())
    _check('grad', grad, (groups.num_groups, ), slope.dtype)
    _check('slope', slope, (slope.numel(), ), slope.dtype)
    grad_, slope_ = _contiguous(grad, slope)
    out = torch.empty_like(slope_)
    _kernel('rbo_grad', slope.dtype)(groups.args, _ptr(grad_), _ptr(slope_),
                                     _ptr(out), torch.get_num_threads())
    return out


def _temperatures(score: Tensor, ptr: Tensor, temperature: float,
                  relative: bool) -> Tensor:
    if not _takes_scores(score):
        return reference.temperatures(score, ptr, temperature, relative)
    groups = _Groups(ptr, score.numel())
    _check('score', score, (score.numel(), ), score.dtype)
    score_, = _contiguous(score)
    out = score.new_empty(groups.num_groups)
    _kernel('temperatures', score.dtype)(groups.args, _ptr(score_),
                                         temperature, relative, _ptr(out),
                                         torch.get_num_threads())
    return out


def _tie_spans(score: Tensor, ptr: Tensor) -> Tuple[Tensor, Tensor]:
    if not _fits(score.numel()):
        return _tie_spans_reference(score, ptr)
    groups = _Groups(ptr, score.numel())
    _check('score', score, (score.numel(), ), score.dtype)
    score_ = _comparable(score)
    first = score.new_empty(score.numel(), dtype=torch.int32)
    last = torch.empty_like(first)
    _kernel('tie_spans', score_.dtype)(groups.args, _ptr(score_), _ptr(first),
                                       _ptr(last), torch.get_num_threads())
    return first, last


def _rank_biased_agreement(pred: Tensor, target: Tensor, ptr: Tensor,
                           p: float, ties: str) -> Tensor:
    if pred.dtype in _HALF:
        pred = pred.float()
    if not _takes_scores(pred):
        return agreement._reference(pred, target, ptr, p, ties)
    groups = _Groups(ptr, pred.numel())
    _check('pred', pred, (pred.numel(), ), pred.dtype)
    _check('target', target, (pred.numel(), ), target.dtype)
    pred_, target_ = pred.contiguous(), _comparable(target)
    out = pred.new_empty(groups.num_groups, dtype=torch.double)
    kernel = _kernel('agreement' + _SUFFIX[pred.dtype], target_.dtype)
    kernel(groups.args, _ptr(pred_), _ptr(target_), p, ties, _ptr(out),
           torch.get_num_threads())
    return out


# Registration ################################################################


def _kernel(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    return getattr(_C, name + _TARGET_SUFFIX[dtype])


def _register() -> None:
    level = os.environ.get('PYG_RANKSPMM_SIMD')
    if level:
        set_simd_level(level)
    for name, kernel in (
        ('csr', _csr),
        ('group', _group),
        ('arrange', _arrange),
        ('restore', _restore),
        ('transpose', _transpose),
        ('compress', _compress),
        ('spmm', _spmm),
        ('sddmm', _sddmm),
        ('attention', _attention),
        ('attention_backward', _attention_backward),
        ('soft_rank', _soft_rank),
        ('soft_rank_backward', _soft_rank_backward),
        ('rbo', _rbo),
        ('rbo_backward', _rbo_backward),
        ('temperatures', _temperatures),
        ('tie_spans', _tie_spans),
        ('rank_biased_agreement', _rank_biased_agreement),
    ):
        LIBRARY.impl(name, kernel, 'CPU')


if is_available():
    _register()
elif _C is None:
    # An installed package has left its C++ behind.
    here = os.path.dirname(os.path.abspath(__file__))
    warnings.warn("'pyg_rankspmm' was "
                  + (f"imported from its sources in {here!r}, where no "
                     f"kernels are" if os.path.isdir(f'{here}/csrc') else
                     'installed without its compiled kernels')
                  + ", and runs plain PyTorch, which is several times slower; "
                  "leave that folder if it is installed elsewhere, or install "
                  "it ('pip install -e .') where there is a C++ compiler",
                  stacklevel=2)
