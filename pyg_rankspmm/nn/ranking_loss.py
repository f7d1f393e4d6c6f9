"""Rank-Biased Overlap as a loss."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_rankspmm.graph import arrange, compact, group
from pyg_rankspmm.ops import reference
from pyg_rankspmm.ops.reference import accumulator
from pyg_rankspmm.ops.soft_rank import (
    check_groups,
    check_target,
    count_groups,
    overlap,
    rank_groups,
    temperatures,
    without_gaps,
)
from pyg_rankspmm.typing import (
    check_bool,
    check_choice,
    check_float,
    check_index,
    check_positive,
    check_probability,
    check_tensor,
    describe,
    edge_index_hint,
    flatten,
)


class RankingLoss(torch.nn.Module):
    r"""Compares, for each source node, the order of its predicted edges with
    the true one, by a differentiable Rank-Biased Overlap (RBO) of the `"A
    Similarity Measure for Indefinite Rankings"
    <https://doi.org/10.1145/1852102.1852106>`_ paper,

    .. math::
        \mathcal{L} = \frac{\sum_g n_g \, (1 - \mathrm{RBO}_g)}{\sum_g n_g},
        \qquad
        \mathrm{RBO}_g = \sum_{d=1}^{n_g} w_d \, \frac{|\hat{T}_d \cap
        T_d|}{d} + p^{n_g}, \qquad w_d = (1 - p) \, p^{d-1},

    where :math:`n_g` is the number of edges of source node :math:`g`, and
    :math:`\hat{T}_d` and :math:`T_d` are its first :math:`d` edges by
    prediction and by target.
    For :math:`p = 1`, all depths weigh the same (average overlap):
    :math:`w_d = 1 / n_g`.
    All source nodes are compared at once, without a loop.

    The predictions are ranked softly (:func:`~pyg_rankspmm.soft_rank`) and
    the overlap is linear between two whole ranks, so that the loss is exact
    for a small temperature.
    Equal targets are averaged over all their orders, equal predictions share
    their ranks.
    A source node with a single edge has a loss of 0, and counts in the mean.
    One with a :obj:`NaN` (or an infinite prediction) has :obj:`NaN`, and so
    has the mean.

    The loss only knows the order.
    With a relative temperature it leaves the scale of the predictions open:
    add a little of another loss as an anchor, such as 0.2 times the mean
    squared error over the variance of the targets within a source node.

    Args:
        p (float, optional): The persistence :math:`0 < p \leq 1`: the smaller,
            the more the first ranks weigh. See
            :func:`~pyg_rankspmm.metrics.functional.rbo_weight`.
            (default: :obj:`1.0`)
        temperature (float, optional): How far two predictions must lie apart
            to be told apart, :math:`\tau > 0`. (default: :obj:`0.3`)
        relative (bool, optional): If set to :obj:`True`, the temperature is in
            standard deviations of the predictions of the source node, so that
            the loss does not depend on their scale; else in units of the
            predictions. (default: :obj:`True`)
        weighting (str, optional): How much a source node counts: as much as it
            has edges (:obj:`"degree"`), or all the same (:obj:`"uniform"`).
            (default: :obj:`"degree"`)
        reduction (str, optional): The weighted mean over all source nodes
            (:obj:`"mean"`), the weighted sum (:obj:`"sum"`), or the loss of
            each source node times its weight, that is its number of edges
            (:obj:`"none"`).
            (default: :obj:`"mean"`)
        group_by (str, optional): Whether the edges are grouped by source node
            (:obj:`"src"`, :obj:`edge_label_index[0]`) or by target node
            (:obj:`"dst"`). (default: :obj:`"src"`)
        process_group (ProcessGroup or str, optional): The processes whose
            edges make up one batch: a
            :class:`torch.distributed.ProcessGroup`, or :obj:`"world"` for
            all of them, which is looked up in each call and means the process
            alone as long as :mod:`torch.distributed` is not initialized.
            See below. (default: :obj:`None`)

    **Several processes.** :class:`~torch.nn.parallel.DistributedDataParallel`
    (DDP) averages the gradients of all processes as if their batches had the
    same weight.
    With :obj:`process_group`, :math:`\sum_g n_g` in the denominator runs over
    all processes (and so does the spread of all predictions, which bounds a
    relative temperature from below), and the loss of a process is multiplied
    by their number: DDP's averaged gradient is then the gradient of the union
    of the batches.
    The mean over the processes of what they return is the loss of the union;
    log that.

    - Each call waits for the same call in all processes, also in evaluation.
      A process without edges joins with empty tensors.
      One that has run out of batches goes on with
      :obj:`criterion(pred[:0], target[:0], edge_label_index[:, :0])`, and its
      backward pass, until all are done:
      :class:`torch.distributed.algorithms.Join` cannot stand in for what a
      loss communicates.
      :class:`~pyg_rankspmm.loader.SourceNodeSampler` gives all processes the
      same number of batches.
    - All edges of a source node must be in one process, or its parts count as
      lists of their own.
      :class:`~pyg_rankspmm.loader.SourceNodeSampler` takes care of that, too.

    Shapes:
        - **input:**
          predictions :math:`(|\mathcal{E}|)`, targets
          :math:`(|\mathcal{E}|)`, edge indices :math:`(2, |\mathcal{E}|)` or
          group ids :math:`(|\mathcal{E}|)`
        - **output:** scalar, or :math:`(|\mathcal{V}_s|)` with
          :obj:`reduction="none"`, where nodes without edges have 0

    Example:
        >>> criterion = RankingLoss()
        >>> edge_label_index = torch.tensor([[0, 0, 0, 1, 1],
        ...                                  [3, 1, 2, 1, 0]])
        >>> target = torch.tensor([5.0, 3.0, 1.0, 4.0, 2.0])
        >>> pred = torch.tensor([0.9, 0.5, 0.1, 0.2, 0.8], requires_grad=True)
        >>> loss = criterion(pred, target, edge_label_index)
        >>> loss.backward()
        >>> pred.grad[3] < 0  # should rise
        tensor(True)
    """
    def __init__(
        self,
        p: float = 1.0,
        temperature: float = 0.3,
        relative: bool = True,
        weighting: str = 'degree',
        reduction: str = 'mean',
        group_by: str = 'src',
        process_group: Any = None,
    ) -> None:
        super().__init__()
        self.p = check_probability('p', p)
        self.temperature = check_positive('temperature', temperature)
        self.relative = check_bool('relative', relative)
        self.weighting = check_choice('weighting', weighting,
                                      ('degree', 'uniform'))
        self.reduction = check_choice('reduction', reduction,
                                      ('mean', 'sum', 'none'))
        self.group_by = check_choice('group_by', group_by, ('src', 'dst'))
        self.process_group = _check_process_group(process_group)
        if process_group is not None and reduction == 'none':
            raise ValueError("'process_group' must be None with reduction="
                             "'none', which sums nothing up")

    def forward(
        self,
        pred: Tensor,
        target: Tensor,
        edge_label_index: Tensor,
        dim_size: Optional[int] = None,
    ) -> Tensor:
        r"""Runs the forward pass.

        Args:
            pred (torch.Tensor): The predicted scores, higher is better, shape
                :obj:`[num_edges]` or :obj:`[num_edges, 1]`. bfloat16 and half
                are computed in float32.
            target (torch.Tensor): The true scores, shape as :obj:`pred`, any
                real dtype.
            edge_label_index (torch.Tensor): Shape :obj:`[2, num_edges]`, in
                any order, or the group of each edge, shape
                :obj:`[num_edges]`.
            dim_size (int, optional): The number of source nodes. If
                :obj:`None`, the largest index plus one.
                (default: :obj:`None`)

        Returns:
            torch.Tensor: A scalar or, with :obj:`reduction="none"`, shape
            :obj:`[dim_size]`, in the dtype of :obj:`pred`, but float32 for
            bfloat16 and half.

        Raises:
            TypeError: If an argument has a wrong type or dtype.
            ValueError: If shapes, devices or indices do not fit, or the
                target requires a gradient.
        """
        pred, target, index = self._check(pred, target, edge_label_index)
        index, dim_size = self._groups(index, dim_size)
        ptr, place = group(index, dim_size)
        pred, target = arrange(pred, place), arrange(target, place)
        processes = self._processes()
        tau = self._temperatures(pred, ptr, processes)
        rank = rank_groups(pred, tau, ptr)
        loss = 1.0 - overlap(rank, target, ptr, self.p)

        degree = ptr.diff()
        weight = degree if self.weighting == 'degree' else degree.clamp(max=1)
        loss = weight.to(loss.dtype) * loss
        if self.reduction == 'none':
            return loss
        loss, total = loss.sum(), weight.sum()
        if processes is not None:  # undo the mean that DDP takes
            loss = dist.get_world_size(processes) * loss
        if self.reduction == 'sum':
            return loss
        if processes is not None:
            dist.all_reduce(total, group=processes)
        return loss / total.clamp(min=1).to(loss.dtype)

    def _processes(self) -> Any:
        if self.process_group != 'world':
            return self.process_group
        if dist.is_available() and dist.is_initialized():
            return dist.group.WORLD
        return None

    def _temperatures(self, pred: Tensor, ptr: Tensor,
                      processes: Any) -> Tensor:
        if processes is None or not self.relative:
            return temperatures(pred, ptr, self.temperature, self.relative)

        def gather(part: Tensor) -> Tensor:
            size = dist.get_world_size(processes)
            parts = [torch.empty_like(part) for _ in range(size)]
            dist.all_gather(parts, part, group=processes)
            return torch.stack(parts)

        return reference.temperatures(pred.detach(), ptr, self.temperature,
                                      True, gather)

    def _check(self, pred: Tensor, target: Tensor,
               index: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        # The shape first: an edge_index in its place is told by that.
        pred = check_float('pred', flatten('pred', check_tensor('pred', pred)))
        target = check_target(target, pred)
        check_index('edge_label_index', index)
        if index.dim() == 2 and index.size(0) == 2:
            index = index[0 if self.group_by == 'src' else 1]
        elif index.dim() != 1:
            hint = edge_index_hint('edge_label_index', index)
            raise ValueError(f"'edge_label_index' must have shape [2, "
                             f"num_edges] or [num_edges] (got "
                             f"{describe(index)}){hint}")
        index = check_groups('edge_label_index', index, pred, 'pred')
        return pred.to(accumulator(pred.dtype)), target, index

    def _groups(self, index: Tensor,
                dim_size: Optional[int]) -> Tuple[Tensor, int]:
        if not torch.compiler.is_compiling():
            count = count_groups('edge_label_index', index, dim_size)
            if self.reduction == 'none' or dim_size is not None:
                return index, count
            return without_gaps(index, count)
        if dim_size is not None:
            return index, dim_size
        # A compiler must know the number of groups before the data.
        if self.reduction == 'none':
            raise ValueError("'dim_size' must be given to compile "
                             "reduction='none'")
        return compact(index), index.numel()

    def extra_repr(self) -> str:
        text = (f'p={self.p}, temperature={self.temperature}, '
                f'relative={self.relative}, weighting={self.weighting!r}, '
                f'reduction={self.reduction!r}, group_by={self.group_by!r}')
        if self.process_group is not None:
            text += f', process_group={self.process_group!r}'
        return text


def _check_process_group(value: Any) -> Any:
    if value is None or isinstance(value, str) and value == 'world':
        return value
    if not dist.is_available():
        raise ValueError(f"'process_group' must be None where torch has no "
                         f"distributed package (got {describe(value)})")
    if value is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("'process_group' is a group that this process is "
                         "not a member of; use the loss in its members only")
    if not isinstance(value, dist.ProcessGroup):
        raise TypeError(f"'process_group' must be a torch.distributed."
                        f"ProcessGroup, 'world' or None (got "
                        f"{describe(value)})")
    return value

