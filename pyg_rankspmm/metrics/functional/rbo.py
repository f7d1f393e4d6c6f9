"""Rank-Biased Overlap of all source nodes at once."""
from __future__ import annotations

from typing import Optional

import torch  # noqa: F401  (the example needs it)
from torch import Tensor

from pyg_rankspmm.metrics.functional._groups import (
    check_pair,
    check_reduction,
    check_variant,
    group_pairs,
    reduce_groups,
)
from pyg_rankspmm.ops.agreement import rank_biased_agreement


def rank_biased_overlap(
    pred: Tensor,
    target: Tensor,
    index: Tensor,
    p: float = 0.9,
    ties: str = 'a',
    weighting: str = 'degree',
    reduction: str = 'mean',
    dim_size: Optional[int] = None,
) -> Tensor:
    r"""The Rank-Biased Overlap (RBO) between the order of the predictions and
    the true order, for each group,

    .. math::
        \mathrm{RBO}_g = \sum_{d=1}^{n_g} (1 - p) \, p^{d-1} \,
        \frac{X_d}{d} + p^{n_g}, \qquad
        X_d = \sum_i c_i(d) \, \hat{c}_i(d),

    of the `"A Similarity Measure for Indefinite Rankings"
    <https://doi.org/10.1145/1852102.1852106>`_ paper (extrapolated, eq. 30),
    or :math:`\frac{1}{n_g} \sum_d X_d / d` (average overlap) for
    :math:`p = 1`.
    An entry that is among the first :math:`d` has :math:`c_i(d) = 1`. If it
    shares the ranks :math:`t` to :math:`b` with others of the same score,
    :math:`c_i(d)` rises from 0 to 1 in equal steps: the overlap is the mean
    over all orders of equal scores, on both sides (:math:`\mathrm{RBO}^a` of
    `"The Treatment of Ties in Rank-Biased Overlap"
    <https://arxiv.org/abs/2406.07121>`_). For its other two variants, see
    :func:`rank_biased_overlap_lists`.

    The overlap of random orders is not 0: it is the larger, the shorter the
    lists are (0.95 for two entries and :math:`p = 0.9`). Compare with that of
    random scores.

    A group with a :obj:`NaN` in it is :obj:`NaN`, and so is the mean then.

    Computed in :math:`\mathcal{O}(n \log n)`, in float64, with some 200 bytes
    for each edge.

    Args:
        pred (torch.Tensor): The predicted scores, higher is better, shape
            :obj:`[num_edges]`.
        target (torch.Tensor): The true scores, shape :obj:`[num_edges]`.
        index (torch.Tensor): The group (source node) of each edge, shape
            :obj:`[num_edges]`, in any order.
        p (float, optional): The persistence :math:`0 < p \leq 1`.
            (default: :obj:`0.9`)
        ties (str, optional): The variant for ties: :obj:`"a"`, :obj:`"b"` or
            :obj:`"w"`. (default: :obj:`"a"`)
        weighting (str, optional): Whether a group counts as much as it has
            edges (:obj:`"degree"`), or all the same (:obj:`"uniform"`) in the
            mean. (default: :obj:`"degree"`)
        reduction (str, optional): The mean over all groups with edges
            (:obj:`"mean"`), or the value of each group, :obj:`NaN` for groups
            without edges (:obj:`"none"`). (default: :obj:`"mean"`)
        dim_size (int, optional): The number of groups. If :obj:`None`, the
            largest index plus one. (default: :obj:`None`)

    Returns:
        torch.Tensor: A scalar, or shape :obj:`[num_groups]`; float64.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If shapes, devices or indices do not fit.

    Example:
        >>> pred = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
        >>> target = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
        >>> index = torch.zeros(5, dtype=torch.long)
        >>> rank_biased_overlap(pred, target, index, p=1.0)
        tensor(0.4167, dtype=torch.float64)
    """
    p = check_variant(p, ties)
    check_reduction(weighting, reduction)
    pred, target, index = check_pair(pred, target, index)
    pred, target, ptr = group_pairs(pred, target, index, dim_size, reduction)
    out = rank_biased_agreement(pred, target, ptr, p, ties)
    n = ptr.diff()
    return reduce_groups(out, n, n > 0, weighting, reduction)
