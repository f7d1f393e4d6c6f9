"""Rank-Biased Overlap of two ranked lists for each group."""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_rankspmm.graph import arrange, group
from pyg_rankspmm.metrics.functional._groups import check_variant, joint_rank
from pyg_rankspmm.metrics.functional.persistence import tail_sum
from pyg_rankspmm.ops.agreement import (
    Cut,
    Depths,
    Ranking,
    Weights,
    agreement,
    broken_groups,
    overlap,
    rank,
)
from pyg_rankspmm.ops.soft_rank import check_groups, count_groups
from pyg_rankspmm.typing import (
    as_sortable,
    check_device,
    check_index,
    check_length,
    check_tensor,
    describe,
    flatten,
)

Triple = Tuple[Tensor, Tensor, Tensor]  # item, score, index


def rank_biased_overlap_lists(
    first: Triple,
    second: Triple,
    p: float = 0.9,
    ties: str = 'a',
    dim_size: Optional[int] = None,
) -> Dict[str, Tensor]:
    r"""The Rank-Biased Overlap (RBO) of two ranked lists for each group, which
    need not hold the same items, nor be equally long, and may hold ties: of
    the `"A Similarity Measure for Indefinite Rankings"
    <https://doi.org/10.1145/1852102.1852106>`_ and the `"The Treatment of Ties
    in Rank-Biased Overlap" <https://arxiv.org/abs/2406.07121>`_ papers,

    .. math::
        \mathrm{RBO} = \sum_{d=1}^{\infty} (1 - p) \, p^{d-1} A_d.

    An item whose ties span the ranks :math:`t` to :math:`b` of a list counts
    there with :math:`c(d) = \frac{d - t + 1}{b - t + 1}`, kept between 0 and
    1. The overlap :math:`X_d = \sum_i c_i(d) \, \hat{c}_i(d)` gives the
    agreement

    .. math::
        A_d = \begin{cases}
        X_d \, / \, d & \text{(a)} \\
        X_d \, / \, \sqrt{\sum_i c_i(d)^2 \sum_i \hat{c}_i(d)^2} &
        \text{(b)} \\
        2 X_d \, / \, \left( \sum_i c_i(d) + \sum_i \hat{c}_i(d) \right) &
        \text{(w)},
        \end{cases}

    where :math:`c(d) = 1` from :math:`t` on in the last one.
    Take :obj:`"a"` if ties are orders that are not known (the mean over all of
    them), :obj:`"b"` to correct that for the information that is lost (tied
    lists agree fully with themselves), and :obj:`"w"` if tied items do share
    their first rank, as in sports. Without ties the three are equal.

    Beyond its end, a list could go on with any item. So the result has bounds:
    :obj:`"min"` if no further item is shared, :obj:`"max"` if as many as
    possible are, and between them :obj:`"ext"`, for which the agreement goes
    on as it was where the shorter list and then the longer one ended.
    For :math:`p = 1` all of them are the mean of :math:`A_d` over the depths
    of the longer list (average overlap), without what is beyond: where lists
    are equally long, the bounds meet.

    Computed in :math:`\mathcal{O}(n \log n)`, in float64, with some 150 bytes
    for each item.

    Args:
        first (Tuple[torch.Tensor, torch.Tensor, torch.Tensor]): The items of
            the first list of all groups, any integers; their scores, higher
            is better, any real dtype; and their groups. Shape
            :obj:`[num_items]` each, in any order. No item may be twice in a
            list.
        second (Tuple[torch.Tensor, torch.Tensor, torch.Tensor]): The second
            list of all groups.
        p (float, optional): The persistence :math:`0 < p \leq 1`.
            (default: :obj:`0.9`)
        ties (str, optional): The variant for ties: :obj:`"a"`, :obj:`"b"` or
            :obj:`"w"`. (default: :obj:`"a"`)
        dim_size (int, optional): The number of groups. If :obj:`None`, the
            largest index plus one. (default: :obj:`None`)

    Returns:
        Dict[str, torch.Tensor]: :obj:`"ext"`, :obj:`"min"`, :obj:`"max"` and
        :obj:`"res"`, the difference of the last two, shape
        :obj:`[num_groups]`, float64. If one list of a group is empty, there
        is nothing to extrapolate from, and :obj:`"ext"` is :obj:`NaN`. If both
        are, or a score is :obj:`NaN`, all are.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If shapes, devices or indices do not fit, or a list holds
            an item twice.

    Example:
        >>> items = torch.tensor([1, 2, 3])
        >>> scores = torch.tensor([0.9, 0.5, 0.1])
        >>> index = torch.zeros(3, dtype=torch.long)
        >>> best = items[:1], scores[:1], index[:1]
        >>> out = rank_biased_overlap_lists((items, scores, index), best, 0.4)
        >>> out['ext']  # as far as the shorter list goes, they agree
        tensor([1.], dtype=torch.float64)
        >>> out['min']
        tensor([0.7662], dtype=torch.float64)
    """
    p = check_variant(p, ties)
    lists = _check_list('first', first), _check_list('second', second)
    check_device('second[1]', lists[1].score, lists[0].score.device,
                 'first[1]')
    if dim_size is None:
        dim_size = max(count_groups(f'{name}[2]', x.group)
                       for name, x in zip(('first', 'second'), lists))
    (x, a), (y, b) = (_rank_list(f'{name}[2]', x, dim_size)
                      for name, x in zip(('first', 'second'), lists))
    out = _bounds(a, b, _match(x, y), p, ties)
    none = (a.n == 0) | (b.n == 0)
    broken = (broken_groups(a.n, a.group, x.score)
              | broken_groups(b.n, b.group, y.score)
              | (none & (a.n == b.n)))
    out['ext'] = out['ext'].masked_fill(none, torch.nan)
    return {k: value.masked_fill(broken, torch.nan)
            for k, value in out.items()}


def _bounds(a: Ranking, b: Ranking, match: Match, p: float,
            ties: str) -> Dict[str, Tensor]:
    long, short = torch.maximum(a.n, b.n), torch.minimum(a.n, b.n)
    depths = Depths(long)
    cuts = Cut(depths, a, ties), Cut(depths, b, ties)
    seen = overlap(depths, a.take(match.first), b.take(match.second), *cuts,
                   ties)
    agreed = depths.at(agreement(seen, depths, *cuts, ties), short)
    # How many items the shorter list lacks at each depth.
    lack = (depths.depth - short[depths.group]).clamp(min=0)
    mean, top = _only_in_longer(a, b, match, depths, cuts, lack, ties)
    overlaps = {
        'ext': seen + lack * agreed[depths.group] * mean,
        'min': seen,
        'max': seen + top,
    }
    weights = Weights(p, depths)
    beyond = _beyond(depths.at(seen, long), agreed, long, short, p, weights)
    out = {k: weights.sum(agreement(x, depths, *cuts, ties), beyond[k])
           for k, x in overlaps.items()}
    out['res'] = (out['max'] - out['min']).clamp(min=0.0)
    return out


def _only_in_longer(a: Ranking, b: Ranking, match: Match, depths: Depths,
                    cuts: Tuple[Cut, Cut], lack: Tensor,
                    ties: str) -> Tuple[Tensor, Tensor]:
    r"""Of the items that only the longer list has: the mean of
    :math:`c(d) > 0`, and the sum over the first so many as the shorter list
    lacks."""
    if ties == 'w':
        return torch.ones_like(lack), lack
    longer = a.n >= b.n
    share = torch.where(longer[depths.group], cuts[0].share, cuts[1].share)
    a, b = a.take(match.only_first), b.take(match.only_second)
    in_a, in_b = longer[a.group], ~longer[b.group]
    group, first, last = (torch.cat([x[in_a], y[in_b]])
                          for x, y in zip(a[:3], b[:3]))
    full = depths.count(group, last + 1, depths.end(group))
    among = depths.count(group, first, last + 1)
    mean = (full + share * among) / (full + among).clamp(min=1)
    whole = torch.minimum(lack, full)
    return mean, whole + share * (lack - whole)


def _beyond(shared: Tensor, agreed: Tensor, long: Tensor, short: Tensor,
            p: float, weights: Weights) -> Dict[str, Tensor]:
    """What the depths beyond the end of the longer list add."""
    # The depth at which all seen items can be in both lists.
    full = long + short - shared.long()
    tail = _harmonic_tail(p, int(full.max()) if full.numel() > 0 else 0,
                         full.device)
    end = (shared + (long - short) * agreed) / long
    return {
        'ext': weights.beyond * end,
        'min': shared * tail[long],
        # The sum of w_d (2 d - full) / d up to there, then of w_d.
        'max': (weights.beyond * (2.0 - p**(full - long).double()) - full *
                (tail[long] - tail[full])),
    }


def _harmonic_tail(p: float, depth: int, device: torch.device) -> Tensor:
    """The sum of w_d / d over d > k, for k = 0 to depth."""
    if p == 1.0:
        return torch.zeros(depth + 1, dtype=torch.double, device=device)
    d = torch.arange(1, depth + 1, dtype=torch.double, device=device)
    end = tail_sum(p, depth + 1) * (1.0 - p) / p
    terms = F.pad((1.0 - p) * p**(d - 1.0) / d, (0, 1), value=end)
    return terms.flip(0).cumsum(0).flip(0)


# Lists #######################################################################


class Items(NamedTuple):
    """One list for each group."""
    item: Tensor
    score: Tensor
    group: Tensor


class Match(NamedTuple):
    """Positions of the items in both lists, and of those in one only."""
    first: Tensor
    second: Tensor
    only_first: Tensor
    only_second: Tensor


def _check_list(name: str, value: Any) -> Items:
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise TypeError(f"'{name}' must be a triple (item, score, index) of "
                        f"tensors (got {describe(value)})")
    item, score, index = value
    score = flatten(f'{name}[1]', check_tensor(f'{name}[1]', score)).detach()
    if score.is_complex():
        raise TypeError(f"'{name}[1]' must hold real scores (got "
                        f"{describe(score)})")
    item = flatten(f'{name}[0]', check_index(f'{name}[0]', item)).long()
    check_length(f'{name}[0]', item, score.size(0), f'{name}[1]')
    check_device(f'{name}[0]', item, score.device, f'{name}[1]')
    return Items(item, as_sortable(score),
                 check_groups(f'{name}[2]', index, score, f'{name}[1]'))


def _rank_list(name: str, value: Items,
               dim_size: int) -> Tuple[Items, Ranking]:
    """The items side by side in their groups, and how they rank there."""
    count_groups(name, value.group, dim_size)
    ptr, place = group(value.group, dim_size)
    value = Items(*(arrange(x, place) for x in value))
    return value, rank(ptr, value.score)[0]


def _match(first: Items, second: Items) -> Match:
    """Finds the items of each group in both lists."""
    length = first.item.numel()
    number = joint_rank(torch.cat([first.group, second.group]),
                        torch.cat([first.item, second.item]))[1]
    a = _places('first', first, number[:length], number.numel())
    b = _places('second', second, number[length:], number.numel())
    both = (a >= 0) & (b >= 0)
    return Match(a[both], b[both], a[(a >= 0) & ~both], b[(b >= 0) & ~both])


def _places(name: str, value: Items, number: Tensor, size: int) -> Tensor:
    """Where the list holds the item of each number, -1 if it does not."""
    position = torch.arange(number.numel(), device=number.device)
    place = position.new_full((size, ), -1)
    place[number] = position
    twice = place[number] != position
    if bool(twice.any()):
        at = int(twice.nonzero()[0])
        raise ValueError(f"'{name}' must not hold an item twice in a group "
                         f"(got item {int(value.item[at])} of group "
                         f"{int(value.group[at])} more than once)")
    return place
