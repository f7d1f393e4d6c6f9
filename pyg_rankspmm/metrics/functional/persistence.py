"""How deep Rank-Biased Overlap looks."""
from __future__ import annotations

import math
from typing import Any

import torch

from pyg_rankspmm.typing import check_probability, describe


def rbo_weight(p: float, depth: int) -> float:
    r"""The weight that RBO gives to the first :obj:`depth` ranks,

    .. math::
        W(d) = 1 - p^{d-1} + \frac{1 - p}{p} \, d \left( \ln \frac{1}{1 - p}
        - \sum_{i=1}^{d-1} \frac{p^i}{i} \right),

    eq. 21 of the `"A Similarity Measure for Indefinite Rankings"
    <https://doi.org/10.1145/1852102.1852106>`_ paper.

    Args:
        p (float): The persistence :math:`0 < p \leq 1`. For :math:`p = 1`,
            which weighs all depths of an endless list alike, the weight is 0.
        depth (int): The number of ranks :math:`d \geq 1`.

    Returns:
        float: The weight, from 0 to 1.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If :math:`p` or :math:`d` are out of range.

    Example:
        >>> round(rbo_weight(0.9, 10), 4)
        0.8556
    """
    check_probability('p', p)
    _check_depth(depth)
    if p == 1.0:
        return 0.0
    # (1 - p) / p alone is infinite for the smallest p.
    tail = tail_sum(p, depth) / p
    return 1.0 - p**(depth - 1) + (1.0 - p) * depth * tail


def rbo_p(weight: float, depth: int) -> float:
    r"""The persistence :math:`p` for which RBO gives the weight
    :obj:`weight` to the first :obj:`depth` ranks: the inverse of
    :func:`rbo_weight`.

    Args:
        weight (float): The weight, between 0 and 1 (exclusive).
        depth (int): The number of ranks :math:`d \geq 1`.

    Returns:
        float: The persistence, between 0 and 1.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If the weight or :math:`d` are out of range.

    Example:
        >>> round(rbo_p(0.8556, 10), 3)
        0.9
    """
    _check_depth(depth)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise TypeError(f"'weight' must be a number between 0 and 1 (got "
                        f"{describe(weight)})")
    if not 0.0 < weight < 1.0:
        raise ValueError(f"'weight' must lie between 0 and 1 (got {weight})")
    low, high = 0.0, 1.0  # the weight falls from 1 to 0
    while high - low > 1e-12:
        p = (low + high) / 2
        low, high = (p, high) if rbo_weight(p, depth) > weight else (low, p)
    return (low + high) / 2


def _check_depth(depth: Any) -> None:
    if isinstance(depth, bool) or not isinstance(depth, int):
        raise TypeError(f"'depth' must be an integer (got {describe(depth)})")
    if depth < 1:
        raise ValueError(f"'depth' must be at least 1 (got {depth})")


def tail_sum(p: float, depth: int) -> float:
    """The sum of p^i / i over i >= depth, for p < 1."""
    if p**depth > 1e-6:
        i = torch.arange(1, depth, dtype=torch.double)
        tail = -math.log1p(-p) - float((p**i / i).sum())
        if tail > 1e-6:
            return tail
    # Summed as such where the difference would cancel, over as many terms as
    # float64 can see.
    i = torch.arange(1 + int(-40.0 / math.log(p)), dtype=torch.double)
    return p**depth * float((p**i / (depth + i)).sum())
