"""Losses for the order of the edges of each source node, side by side.

Each takes ``pred``, ``target`` and ``index`` (the group of each edge), all of
shape ``[num_edges]``, and returns a scalar: the mean over the groups, each
weighted by its number of edges, as :class:`~pyg_rankspmm.RankingLoss` has it.
None of them loops over groups.
"""
from __future__ import annotations

from typing import Callable, Dict, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import scatter, softmax

from pyg_rankspmm import RankingLoss
from pyg_rankspmm.graph import arrange, group
from pyg_rankspmm.ops.soft_rank import (
    overlap,
    soft_rank,
    temperatures,
    tie_spans,
)

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

# Partners that each edge is compared with by a pairwise loss, drawn anew in
# each step: all pairs of a user with 900 edges would be 400,000.
NUM_PARTNERS = 4
TEMPERATURE = 0.3  # of all soft ranks, in standard deviations of the group


# Pointwise ###################################################################


def mse(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
    """The squared error, in the variance of the targets within a group."""
    return F.mse_loss(pred, target) / variance_within(target, index)


def centered_mse(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
    """The squared error after both lost the mean of their group, which no
    order depends on."""
    pred, target = (x - scatter(x, index, reduce='mean')[index]
                    for x in (pred, target))
    return (pred - target).square().mean() / target.square().mean()


def variance_within(target: Tensor, index: Tensor) -> Tensor:
    mean = scatter(target, index, reduce='mean')[index]
    return (target - mean).square().mean()


# Pairwise ####################################################################


class Pairs(NamedTuple):
    better: Tensor
    worse: Tensor


def draw_pairs(target: Tensor, index: Tensor,
               num_partners: int = NUM_PARTNERS) -> Pairs:
    """Pairs of edges of one group with different targets. Each edge meets
    :obj:`num_partners` edges of its group, drawn with replacement."""
    ptr, place = group(index, int(index.max()) + 1)
    edge = torch.arange(index.numel(), device=index.device)
    members = arrange(edge, place)
    size = ptr.diff()[index].repeat(num_partners)
    begin = ptr[index].repeat(num_partners)
    offset = (torch.rand(size.numel(), device=size.device) * size).long()
    i = edge.repeat(num_partners)
    j = members[begin + offset.minimum(size - 1)]
    return Pairs(torch.cat([i[target[i] > target[j]],
                            j[target[i] < target[j]]]),
                 torch.cat([j[target[i] > target[j]],
                            i[target[i] < target[j]]]))


def ranknet(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
    """The logistic loss of pairs (Burges et al. 2005)."""
    better, worse = draw_pairs(target, index)
    return F.softplus(pred[worse] - pred[better]).mean()


def lambdarank(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
    """The logistic loss of pairs, weighted by what swapping the two would
    change in NDCG (Burges et al. 2006), without a cut-off."""
    better, worse = draw_pairs(target, index)
    gain, discount = 2.0**target - 1.0, 1.0 / (1.0 + rank(pred, index)).log2()
    change = ((gain[better] - gain[worse]) *
              (discount[better] - discount[worse]).abs() /
              ideal_dcg(target, index)[index[better]])
    # The sum over the pairs of a group, of which n * NUM_PARTNERS are drawn.
    size = torch.bincount(index)[index[better]]
    loss = size * size * change * F.softplus(pred[worse] - pred[better])
    return loss.sum() / (2 * NUM_PARTNERS * index.numel())


# Listwise ####################################################################


def listnet(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
    """The cross-entropy of top-one probabilities (Cao et al. 2007)."""
    truth = softmax(target, index)
    log_prob = softmax(pred, index).clamp(min=1e-12).log()
    size = torch.bincount(index)[index]
    return -(size * truth * log_prob).sum() / index.numel()


def approx_ndcg(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
    """1 - NDCG of soft ranks (Qin et al. 2010)."""
    ptr, place = group(index, int(index.max()) + 1)
    tau = temperatures(arrange(pred, place), ptr, TEMPERATURE, relative=True)
    gain, soft = 2.0**target - 1.0, soft_rank(pred, index, tau)
    ndcg = (gain / (1.0 + soft).log2()) / ideal_dcg(target, index)[index]
    return 1.0 - (torch.bincount(index)[index] * ndcg).sum() / index.numel()


def rank(score: Tensor, index: Tensor) -> Tensor:
    """Ranks from 1 on by falling score; ties in any order."""
    order = score.detach().argsort(descending=True)
    order = order[index[order].argsort(stable=True)]
    size = torch.bincount(index)
    begin = (size.cumsum(0) - size)[index[order]]
    position = torch.arange(1, order.numel() + 1, device=index.device) - begin
    return torch.empty_like(position).index_copy(0, order, position)


def ideal_dcg(target: Tensor, index: Tensor) -> Tensor:
    """The highest DCG that each group can have, :obj:`[num_groups]`."""
    dcg = (2.0**target - 1.0) / (1.0 + rank(target, index)).log2()
    return scatter(dcg, index).clamp(min=1e-12)


# Rank-Biased Overlap #########################################################

rbo: Loss = RankingLoss(p=1.0, temperature=TEMPERATURE)


def in_sublists(loss: Loss, parts: int = 4) -> Loss:
    """Splits each group at random, so that lists are as long in training as
    in the test."""
    def of_parts(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
        part = torch.randint(parts, index.shape, device=index.device)
        return loss(pred, target, parts * index + part)

    return of_parts


def torchsort_rbo(pred: Tensor, target: Tensor, index: Tensor) -> Tensor:
    """:class:`~pyg_rankspmm.RankingLoss` with the soft ranks of torchsort
    (Blondel et al. 2020), which come from a projection."""
    ptr, place = group(index, int(index.max()) + 1)
    sd = temperatures(arrange(pred, place), ptr, 1.0, relative=True)
    size = ptr.diff()
    # Regularized such that a soft rank follows a lone score about as steeply
    # as with TEMPERATURE.
    score = pred * (size / sd)[index]
    soft = _torchsort_rank(score, index, ptr, place)
    soft = soft.clamp(min=1.0)  # rounding may leave 0.99999
    loss = 1.0 - overlap(arrange(soft, place), arrange(target, place), ptr,
                         1.0)
    return (size * loss).sum() / index.numel()


def _torchsort_rank(score: Tensor, index: Tensor, ptr: Tensor,
                    place: Tensor) -> Tensor:
    """torchsort ranks the rows of a matrix: groups of about the same size
    share one, padded by scores that are too low to touch the others."""
    import torchsort

    size = ptr.diff()
    bits = (size - 1).clamp(min=0).double().log2().floor().clamp(min=0).long()
    row_of = torch.zeros_like(size)
    position = place - ptr[index]
    soft = torch.ones_like(score)
    for bit in bits[size > 1].unique():  # not over groups: some ten sizes
        rows = ((bits == bit) & (size > 1)).nonzero().view(-1)
        row_of[rows] = torch.arange(rows.numel(), device=rows.device)
        edge = ((bits == bit) & (size > 1))[index].nonzero().view(-1)
        at = row_of[index[edge]], position[edge]
        low = score.detach()[edge].min() - 4.0 * size[rows].max()
        table = low.repeat(rows.numel(), int(size[rows].max()))
        table = table.index_put(at, score[edge])
        soft = soft.index_put((edge, ), torchsort.soft_rank(-table)[at])
    return soft


def smoothi_rbo(pred: Tensor, target: Tensor, index: Tensor,
                alpha: float = 3.0, delta: float = 0.1) -> Tensor:
    """1 - RBO (p = 1) of the smooth indicators of SmoothI (Thonet et al.
    2022): that of rank d is a softmax of what the ranks before have left.

    A loop over the ranks, out of which a list drops at its end.
    """
    size = torch.bincount(index)
    number = torch.empty_like(size)  # of each list, the longest first
    number[size.argsort(descending=True)] = torch.arange(size.numel())
    ptr, place = group(number[index], size.numel())
    pred, target = arrange(pred, place), arrange(target, place)
    owner, size = number[index].sort().values, ptr.diff()
    score = pred / temperatures(pred, ptr, 1.0, relative=True)[owner]
    low = scatter(score.detach(), owner, reduce='min')
    score = score - low[owner] + delta  # the indicators want them positive
    first, last = tie_spans(target, ptr)

    loss, left = score.new_zeros(()), torch.ones_like(score)
    soft = torch.zeros_like(score)
    for d in range(1, int(size.max()) + 1):
        lists = int((size >= d).sum())
        score, left, soft, owner, first, last = (
            x[:int(ptr[lists])]
            for x in (score, left, soft, owner, first, last))
        chosen = softmax(alpha * score * left, owner, num_nodes=lists)
        left = left * (1.0 - chosen - delta)
        soft = soft + chosen
        true = ((d - first + 1) / (last - first + 1)).clamp(0.0, 1.0)
        shared = scatter(true * soft.clamp(max=1.0), owner, dim_size=lists)
        loss = loss + (1.0 - shared / d).sum()  # a list weighs n * 1 / n
    return loss / index.numel()


LOSSES: Dict[str, Loss] = {
    'MSE': mse,
    'centered MSE': centered_mse,
    'ListNet': listnet,
    'RankNet': ranknet,
    'ApproxNDCG': approx_ndcg,
    'LambdaRank': lambdarank,
    'torchsort RBO': torchsort_rbo,
    'RankingLoss': rbo,
}


# RankingLoss with another option each, or other soft ranks, against the
# defaults.
VARIANTS: Dict[str, Loss] = {
    'p = 0.98': RankingLoss(p=0.98),
    'p = 0.9': RankingLoss(p=0.9),
    'temperature = 0.1': RankingLoss(temperature=0.1),
    'temperature = 1': RankingLoss(temperature=1.0),
    'relative = False': RankingLoss(relative=False),
    "weighting = 'uniform'": RankingLoss(weighting='uniform'),
    'sublists, p = 0.9': in_sublists(RankingLoss(p=0.9)),
    'SmoothI indicators': smoothi_rbo,
}
