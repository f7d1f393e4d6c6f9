"""Shared type aliases and the argument checks with their error texts."""
from __future__ import annotations

import reprlib
from numbers import Real
from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

Adj = Any  # Tensor [2, E], EdgeIndex, torch_sparse.SparseTensor, torch.sparse
Size = Optional[Tuple[int, int]]

_INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32,
                 torch.int64)


def describe(value: Any) -> str:
    """What came, for an error text: the shape and dtype of a tensor, the type
    of anything else."""
    if isinstance(value, Tensor):
        if value.is_nested:  # has no shape
            return f"a nested {value.dtype} tensor"
        kind = str(value.dtype) + (
            '' if value.layout == torch.strided else f', {value.layout}')
        return f"a {kind} tensor of shape {list(value.shape)}"
    return f"{type(value).__name__} {reprlib.repr(value)}"


def check_tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        hint = ''
        if isinstance(value, (list, tuple)) or hasattr(value, '__array__'):
            hint = f"; convert it with 'torch.as_tensor({name})'"
        raise TypeError(f"'{name}' must be a tensor (got {describe(value)})"
                        f"{hint}")
    if value.is_nested:
        raise TypeError(f"'{name}' must not be nested (got "
                        f"{describe(value)}); concatenate its parts")
    return value


def check_dense(name: str, value: Tensor) -> Tensor:
    if value.layout != torch.strided:
        raise TypeError(f"'{name}' must be dense (got {describe(value)}); "
                        f"convert it with '{name}.to_dense()'")
    return value


def check_float(name: str, value: Any) -> Tensor:
    check_tensor(name, value)
    if not value.is_floating_point():
        raise TypeError(f"'{name}' must hold real floating-point numbers (got "
                        f"{describe(value)}); convert it with "
                        f"'{name}.float()'")
    return value


def check_index(name: str, value: Any) -> Tensor:
    check_tensor(name, value)
    if value.dtype not in _INDEX_DTYPES:
        raise TypeError(f"'{name}' must hold integer indices (got "
                        f"{describe(value)}); convert it with "
                        f"'{name}.long()'")
    return check_dense(name, value)


def check_edge_index(name: str, value: Any) -> Tensor:
    check_tensor(name, value)
    if value.dim() != 2 or value.size(0) != 2:
        raise ValueError(f"'{name}' must have shape [2, num_edges] (got "
                         f"{describe(value)}){edge_index_hint(name, value)}")
    return check_index(name, value)


def edge_index_hint(name: str, value: Tensor) -> str:
    """What to do about a tensor that is no ``[2, num_edges]``."""
    if value.dim() == 2 and value.size(1) == 2:
        return f"; transpose it with '{name}.t()'"
    if value.dim() == 2 and value.size(0) == value.size(1):
        return ("; turn a dense adjacency matrix into edges with "
                "'torch_geometric.utils.dense_to_sparse'")
    return ''


def out_of_range(name: str, size: int, got: int) -> ValueError:
    """The error for an index that is negative, or not below a size."""
    hint = ''
    if name.startswith('edge_index'):
        hint = (f"; by the rows of the features, or 'size', there are {size} "
                f"of these nodes: number them from 0 on, or correct that")
    return ValueError(f"'{name}' must hold indices from 0 to {size - 1} (got "
                      f"{got}){hint}")


def flatten(name: str, value: Tensor) -> Tensor:
    """A vector, also if it comes as a column."""
    check_dense(name, value)
    if value.dim() == 2 and value.size(1) == 1:
        return value.squeeze(1)
    if value.dim() != 1:
        raise ValueError(f"'{name}' must have shape [num_edges] or "
                         f"[num_edges, 1] (got {describe(value)})")
    return value


def as_sortable(score: Tensor) -> Tensor:
    """The same real scores in a dtype that PyTorch sorts and indexes."""
    if score.is_floating_point() and score.dtype.itemsize == 1:
        return score.float()
    return score.int() if score.dtype == torch.uint16 else score


def check_length(name: str, value: Tensor, length: int, like: str) -> None:
    if value.size(0) != length:
        raise ValueError(f"'{name}' must have one entry for each of the "
                         f"{length} entries of '{like}' (got "
                         f"{describe(value)})")


def check_device(name: str, value: Any, device: torch.device,
                 like: str) -> None:
    own = getattr(value, 'device', None)
    own = own() if callable(own) else own  # of a SparseTensor
    if isinstance(own, torch.device) and own != device:
        raise ValueError(f"'{name}' is on device '{own}', but '{like}' is on "
                         f"'{device}'; move one of them with '.to(...)'")


def _check_number(name: str, value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"'{name}' must be {what} (got {describe(value)})")
    return float(value)


def check_probability(name: str, value: Any) -> float:
    """A persistence p in (0, 1]."""
    number = _check_number(name, value, 'a number in (0, 1]')
    if not 0.0 < number <= 1.0:
        raise ValueError(f"'{name}' must lie in (0, 1] (got {number}); 1.0 "
                         f"weighs all depths alike, a smaller one the first "
                         f"ranks more")
    return number


def check_positive(name: str, value: Any) -> float:
    """A temperature."""
    number = _check_number(name, value, 'a positive number')
    if not 0.0 < number < float('inf'):
        raise ValueError(f"'{name}' must be positive and finite (got "
                         f"{number}); a small one, such as 0.001, gives "
                         f"nearly exact ranks")
    return number


def check_rate(name: str, value: Any) -> float:
    """A dropout rate in [0, 1]."""
    number = _check_number(name, value, 'a number in [0, 1]')
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"'{name}' must lie in [0, 1] (got {number})")
    return number


def check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"'{name}' must be True or False (got "
                        f"{describe(value)})")
    return value


def check_count(name: str, value: Any) -> int:
    """A number of things, which a compiler may not know yet."""
    if (isinstance(value, bool)
            or not isinstance(value, (int, torch.SymInt))):
        raise TypeError(f"'{name}' must be a whole number (got "
                        f"{describe(value)})")
    if value < 0:
        raise ValueError(f"'{name}' must not be negative (got {value})")
    return value  # type: ignore[return-value]


def check_choice(name: str, value: Any, choices: Tuple[Any, ...]) -> Any:
    if value not in choices:
        raise ValueError(f"'{name}' must be one of "
                         f"{', '.join(map(repr, choices))} (got {value!r})")
    return value


def check_size(name: str, value: Any) -> Tuple[int, int]:
    pair: Union[Tuple[int, int], Any] = value
    if (not isinstance(pair, (tuple, list)) or len(pair) != 2
            or any(isinstance(n, bool) or not isinstance(n, int) or n < 0
                   for n in pair)):
        what = ('(rows, columns)' if name == 'shape' else
                '(num_src_nodes, num_dst_nodes)')
        raise ValueError(f"'{name}' must be a pair {what} of non-negative "
                         f"integers (got {describe(value)})")
    return pair[0], pair[1]
