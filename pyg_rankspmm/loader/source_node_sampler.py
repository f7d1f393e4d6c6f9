"""Batches of edges that keep those of a source node together."""
from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_rankspmm.graph import arrange, group, index_dtype
from pyg_rankspmm.ops.soft_rank import count_groups, without_gaps
from pyg_rankspmm.typing import (
    check_bool,
    check_count,
    check_edge_index,
    check_index,
    describe,
)

EdgeType = Tuple[str, str, str]

_TRIALS = 8  # orders that the number of batches is chosen from
_ATTEMPTS = 64  # orders tried in an epoch to get along with that number


class SourceNodeSampler(torch.utils.data.Sampler[List[int]]):
    r"""Batches of positions in :obj:`edge_label_index` in which the edges of a
    source node stay together, so that a loss over the list of each source
    node, such as :class:`~pyg_rankspmm.RankingLoss`, sees whole lists.

    In an epoch, each edge is in one batch of one process.
    Use it as the :obj:`batch_sampler` of a
    :class:`~torch_geometric.loader.LinkNeighborLoader` or of any other
    :class:`~torch.utils.data.DataLoader` over the edges:

    .. code-block:: python

        store = data['user', 'rates', 'movie']
        sampler = SourceNodeSampler(store.edge_label_index, max_edges=8192,
                                    shuffle=True)
        loader = LinkNeighborLoader(
            data,
            num_neighbors=[20, 10],
            edge_label_index=(('user', 'rates', 'movie'),
                              store.edge_label_index),
            edge_label=store.edge_label,
            batch_sampler=sampler,
        )
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for batch in loader:
                store = batch['user', 'rates', 'movie']
                index = batch['user'].n_id[store.edge_label_index[0]]
                loss = criterion(model(batch), store.edge_label, index)

    The ids in the :obj:`edge_label_index` of a batch are local to it, and
    disjoint or temporal sampling gives a source node a new one for each of
    its edges.
    :obj:`index` in the example holds the global ids, which are the right
    groups in any case (:obj:`batch.n_id[batch.edge_label_index[0]]` on a
    homogeneous graph).

    .. note::
        To sample neighbors, PyG needs :obj:`pyg-lib` or
        :obj:`torch_sparse`. It warns that the latter is deprecated: it works,
        but for disjoint and temporal sampling. :obj:`pyg-lib` comes from
        PyG's own wheel index, not from PyPI.

    **Long lists.** A source node with more than :obj:`max_edges` edges makes
    a batch of its own.
    With :obj:`max_list_length`, the edges of longer lists are dealt at random,
    anew in each epoch, to as few sub-lists as needed, of equal length up to
    one edge.
    A sub-list is a list like any other from then on, and several of the same
    source node may share a batch, where they have the same global id:
    group by :meth:`list_index` to tell them apart.

    **Several processes.** All of them make the same plan, and each takes its
    part of it: the same number of batches, so that none waits for the others
    in vain, and batches of about the same number of edges at a time.
    Batches are split in two where that makes the number right.
    If there are fewer lists than batches needed (a handful of lists, each of
    which fills a batch), a process gets a last batch without edges, unless
    :obj:`drop_last` is set.
    PyG's loaders take it; a plain :class:`~torch.utils.data.DataLoader` over
    :obj:`range(num_edges)` does with :obj:`collate_fn=torch.LongTensor`.

    **Checkpoints.** :meth:`state_dict` and :meth:`load_state_dict` take up an
    epoch where it was left.
    The sampler only knows how many batches it has handed out, and the workers
    of a loader ask for some before they are needed.
    With workers, tell it how many of them were trained on:

    .. code-block:: python

        for i, batch in enumerate(loader, start=sampler.start):
            step(batch)
            checkpoint = {'sampler': sampler.state_dict(num_batches=i + 1)}

    Args:
        edge_label_index (torch.Tensor): The edges to draw, shape
            :obj:`[2, num_edges]`, in any order, or their source nodes (or
            whatever else they are to be grouped by), shape
            :obj:`[num_edges]`.
        batch_size (int, optional): The number of lists in a batch, at most.
            (default: :obj:`None`)
        max_edges (int, optional): The number of edges in a batch, at most.
            One of :obj:`batch_size` and :obj:`max_edges` must be given; with
            both, a batch ends with whatever comes first.
            (default: :obj:`None`)
        max_list_length (int, optional): Cuts the lists of source nodes with
            more edges than this into sub-lists. (default: :obj:`None`)
        shuffle (bool, optional): If set to :obj:`True`, draws the lists in
            another order in each epoch (see :meth:`set_epoch`), else in that
            of their source nodes. (default: :obj:`False`)
        drop_last (bool, optional): If set to :obj:`True`, drops the last batch
            if neither :obj:`batch_size` nor :obj:`max_edges` fills it, and
            what would leave some processes without a batch.
            (default: :obj:`False`)
        seed (int, optional): Decides the order and the sub-lists together
            with the epoch. Must be the same in all processes.
            (default: :obj:`0`)
        num_replicas (int, optional): The number of processes. If :obj:`None`,
            that of :mod:`torch.distributed` if it is initialized, else one.
            (default: :obj:`None`)
        rank (int, optional): The number of this process, likewise.
            (default: :obj:`None`)

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If a number is out of its range, or there are more
            processes than lists.

    Example:
        >>> edge_label_index = torch.tensor([[0, 1, 0, 2, 1, 0],
        ...                                  [3, 1, 2, 1, 0, 4]])
        >>> list(SourceNodeSampler(edge_label_index, batch_size=1))
        [[0, 2, 5], [1, 4], [3]]
        >>> list(SourceNodeSampler(edge_label_index, max_edges=3))
        [[0, 2, 5], [1, 4, 3]]
    """
    def __init__(
        self,
        edge_label_index: Tensor,
        batch_size: Optional[int] = None,
        max_edges: Optional[int] = None,
        max_list_length: Optional[int] = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
    ) -> None:
        index = _check_sources(edge_label_index)
        self.batch_size = _check_limit('batch_size', batch_size)
        self.max_edges = _check_limit('max_edges', max_edges)
        self.max_list_length = _check_limit('max_list_length', max_list_length)
        if batch_size is None and max_edges is None:
            raise ValueError("'batch_size' or 'max_edges' must be given: the "
                             "number of source nodes or of edges in a batch")
        self.shuffle = check_bool('shuffle', shuffle)
        self.drop_last = check_bool('drop_last', drop_last)
        self.seed = check_count('seed', seed)
        self.num_replicas, self.rank = _check_rank(num_replicas, rank)

        self.epoch = 0
        self.start = 0  # of the next iteration, in batches
        self._handed_out = 0
        self._iteration: Optional[object] = None  # that counts the batches
        self._checksum = _checksum(index)
        self._lists = _Lists.build(index, self.max_list_length)
        self._num_batches: Optional[int] = None
        self._safe_key: Tuple[int, ...] = (_TRIAL, 0)
        self._plan: Optional[_Plan] = None
        if 0 < self.num_lists < self.num_replicas:
            raise ValueError(f"'num_replicas' must not exceed the number of "
                             f"source nodes with edges, {self.num_lists}, "
                             f"since each process needs one (got "
                             f"{self.num_replicas})")

    @classmethod
    def from_data(
        cls,
        data: Any,
        edge_type: Optional[EdgeType] = None,
        **kwargs: Any,
    ) -> SourceNodeSampler:
        r"""The sampler for the :obj:`edge_label_index` of a graph, as
        :class:`~torch_geometric.transforms.RandomLinkSplit` leaves it.

        Args:
            data (Data or HeteroData): The graph.
            edge_type (Tuple[str, str, str], optional): The type of the edges
                in a heterogeneous graph. (default: :obj:`None`)
            **kwargs (optional): The arguments of :class:`SourceNodeSampler`.

        Raises:
            TypeError: If :obj:`data` is no graph.
            ValueError: If the graph lacks the edge type or its
                :obj:`edge_label_index`, or a node of it.
        """
        return cls(_label_index(data, edge_type), **kwargs)

    @property
    def num_lists(self) -> int:
        """The number of source nodes with edges; of sub-lists where these are
        cut."""
        return self._lists.length.numel()

    def __repr__(self) -> str:
        names = ('batch_size', 'max_edges', 'max_list_length', 'shuffle',
                 'drop_last', 'seed', 'num_replicas', 'rank')
        return (f'{type(self).__name__}({self.num_lists} lists, ' + ', '.join(
            f'{name}={getattr(self, name)}' for name in names) + ')')

    def __len__(self) -> int:
        """The number of batches of this process in an epoch, the same in each
        epoch, counted from its beginning also after
        :meth:`load_state_dict`."""
        if self._num_batches is None:
            self._num_batches = self._count_steps()
        return self._num_batches

    def __iter__(self) -> Iterator[List[int]]:
        # Runs with the first batch: a loader with workers calls iter() twice.
        start, self.start = self.start, 0
        self._handed_out = start
        self._iteration = iteration = object()
        plan = self._current_plan()
        for i in range(start, plan.start.numel()):
            lists = plan.order[plan.start[i]:plan.end[i]]
            batch = plan.perm[_ranges(self._lists.ptr[lists],
                                      self._lists.length[lists])].tolist()
            if self._iteration is iteration:  # the sampler has not moved on
                self._handed_out = i + 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        r"""Chooses the order and the sub-lists, of the next iteration on.

        Goes to the beginning of the epoch, unless it is the current one: after
        :meth:`load_state_dict` of an epoch half done, what is left of it is
        drawn.
        """
        if check_count('epoch', epoch) != self.epoch:
            self.epoch, self.start = epoch, 0
            self._handed_out, self._plan = 0, None
            self._iteration = None

    def list_index(self, input_id: Tensor) -> Tensor:
        r"""The number of the list of edges in the current epoch, as group ids
        that tell the sub-lists of a source node apart.

        Args:
            input_id (torch.Tensor): Positions in :obj:`edge_label_index`,
                which a batch of a
                :class:`~torch_geometric.loader.LinkNeighborLoader` holds
                under that name, shape :obj:`[num_edges]`.
        """
        check_index('input_id', input_id)
        num_edges = self._lists.perm.numel()
        if input_id.numel() > 0:
            low, high = (int(bound) for bound in input_id.aminmax())
            if low < 0 or high >= num_edges:
                raise ValueError(f"'input_id' must hold positions among the "
                                 f"{num_edges} edges (got {low} to {high})")
        if self._plan is None or self._plan.list_index is None:
            perm = self._current_plan().perm
            index = torch.empty_like(perm)
            index[perm.long()] = torch.arange(
                self.num_lists, dtype=perm.dtype).repeat_interleave(
                    self._lists.length)
            self._plan = self._current_plan()._replace(list_index=index)
        assert self._plan.list_index is not None
        index = self._plan.list_index[input_id.long().cpu()]
        return index.long().to(input_id.device)

    # Checkpoints #############################################################

    def state_dict(self, num_batches: Optional[int] = None) -> Dict[str, Any]:
        r"""Where the epoch is, the same in all processes, in plain numbers.

        Args:
            num_batches (int, optional): The number of batches of this epoch,
                counted from its beginning, that are done with. If
                :obj:`None`, as many as the sampler has handed out, which is
                right without workers only. (default: :obj:`None`)
        """
        if num_batches is None:
            num_batches = max(self._handed_out, self.start)
        num_batches = self._check_num_batches('num_batches', num_batches)
        return {'epoch': self.epoch, 'num_batches': num_batches,
                'config': self._config()}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        r"""Goes to where :meth:`state_dict` was called: the next iteration
        yields what is left of that epoch.

        Raises:
            ValueError: If the state is that of a sampler with other
                arguments, another number of processes or other edges.
        """
        keys = {'epoch', 'num_batches', 'config'}
        if (not isinstance(state_dict, dict) or set(state_dict) != keys
                or not isinstance(state_dict['config'], dict)):
            raise ValueError(f"'state_dict' must be what 'state_dict()' of a "
                             f"SourceNodeSampler returns (got "
                             f"{describe(state_dict)})")
        theirs, ours = state_dict['config'], self._config()
        wrong = [f'{key}: {theirs.get(key)} there, {value} here'
                 for key, value in ours.items() if theirs.get(key) != value]
        if wrong:
            raise ValueError(f"'state_dict' is that of another configuration "
                             f"({'; '.join(wrong)}); make the sampler with "
                             f"the same arguments and edges, or start the "
                             f"epoch anew with 'set_epoch'")
        epoch = check_count('epoch', state_dict['epoch'])
        start = self._check_num_batches('num_batches',
                                        state_dict['num_batches'])
        self.set_epoch(epoch)
        self.start = self._handed_out = start
        self._iteration = None

    def _check_num_batches(self, name: str, value: Any) -> int:
        if check_count(name, value) > len(self):
            raise ValueError(f"'{name}' must not exceed the {len(self)} "
                             f"batches of an epoch (got {value})")
        return value

    def _config(self) -> Dict[str, Any]:
        names = ('batch_size', 'max_edges', 'max_list_length', 'shuffle',
                 'drop_last', 'seed', 'num_replicas')
        return {**{name: getattr(self, name) for name in names},
                'num_edges': self._lists.perm.numel(),
                'checksum_of_edges': self._checksum}

    # The plan of an epoch ####################################################

    def _current_plan(self) -> _Plan:
        if self._plan is None:
            order, bounds = self._pack()
            generator = _generator(self.seed, _CUT, self.epoch)
            row = torch.arange(bounds.numel() - 1).view(-1, self.num_replicas)
            if self.num_replicas > 1:
                size = self._lists.edges_before(order)[bounds].diff()
                row = _deal(size, self.num_replicas,
                            generator if self.shuffle else None)
            mine = row[:, self.rank]
            self._plan = _Plan(self._lists.cut_anew(generator), order,
                               bounds[mine], bounds[mine + 1], None)
        return self._plan

    def _pack(self) -> Tuple[Tensor, Tensor]:
        """An order of the lists, and the bounds of the batches of all
        processes in it."""
        number = len(self) * self.num_replicas
        for attempt in range(_ATTEMPTS):
            order, bounds = self._try(_EPOCH, self.epoch, attempt)
            count = self._count(order, bounds)
            if count >= number if self.drop_last else count <= number:
                break
        else:  # practically never
            order, bounds = self._try(*self._safe_key)
        if self.drop_last:
            return order, bounds[:number + 1]
        return order, _split(bounds, self._lists.edges_before(order), number)

    def _count_steps(self) -> int:
        """The number of batches of a process.

        How many batches are full depends on the order, where edges count. The
        number must not: so it is one that a random order can be expected to
        get along with, and those that cannot are drawn again.
        """
        varies = self.shuffle and self.max_edges is not None
        keys = [(_TRIAL, i) for i in range(_TRIALS if varies else 1)]
        counts = [self._count(*self._try(*key)) for key in keys]
        number = min(counts) if self.drop_last else max(counts)
        self._safe_key = keys[counts.index(number)]
        if self.drop_last:
            return number // self.num_replicas
        return -(-number // self.num_replicas)

    def _try(self, *key: int) -> Tuple[Tensor, Tensor]:
        """An order of the lists, and the bounds of as few batches as hold
        them."""
        order = torch.arange(self.num_lists)
        if self.shuffle:
            order = torch.randperm(self.num_lists,
                                   generator=_generator(self.seed, *key))
        before = self._lists.edges_before(order)
        return order, _cut(before, self.batch_size, self.max_edges)

    def _count(self, order: Tensor, bounds: Tensor) -> int:
        """The number of batches, or of full ones with :obj:`drop_last`."""
        count = bounds.numel() - 1
        if not self.drop_last or count == 0:
            return count
        last = order[bounds[-2]:]
        full = (self.batch_size is not None
                and last.numel() >= self.batch_size
                or self.max_edges is not None
                and int(self._lists.length[last].sum()) >= self.max_edges)
        return count if full else count - 1


# The parts of a plan #########################################################


class _Plan(NamedTuple):
    """The batches of a process: batch :obj:`i` holds the lists
    :obj:`order[start[i]:end[i]]`, the edges of which are found in
    :obj:`perm`."""
    perm: Tensor
    order: Tensor
    start: Tensor
    end: Tensor
    list_index: Optional[Tensor]


class _Lists(NamedTuple):
    """List :obj:`i` holds the edges :obj:`perm[ptr[i]:ptr[i] + length[i]]`.

    The entries :obj:`cut` of :obj:`perm` belong to source nodes whose list is
    cut into several, :obj:`cut_source` says to which."""
    ptr: Tensor
    length: Tensor
    perm: Tensor
    cut: Tensor
    cut_source: Tensor

    @staticmethod
    def build(index: Tensor, max_length: Optional[int]) -> _Lists:
        """The lists of the source nodes with edges, by their ids."""
        count = count_groups('edge_label_index', index)
        ptr, place = group(*without_gaps(index, count))
        perm = arrange(torch.arange(index.numel(),
                                    dtype=index_dtype(index.numel())), place)
        degree = ptr.diff()
        degree = degree[degree > 0]
        parts = torch.ones_like(degree)
        if max_length is not None and max_length < index.numel():
            parts = (degree + max_length - 1) // max_length
        source = torch.arange(degree.numel()).repeat_interleave(parts)
        part = _ranges(torch.zeros_like(parts), parts)
        length = (degree // parts)[source] + (part < (degree % parts)[source])
        entry = (parts > 1).repeat_interleave(degree)
        cut = entry.nonzero().view(-1)
        cut_source = torch.arange(degree.numel())[parts > 1]
        cut_source = cut_source.repeat_interleave(degree[parts > 1])
        return _Lists(length.cumsum(0) - length, length, perm, cut, cut_source)

    def edges_before(self, order: Tensor) -> Tensor:
        """The number of edges before each place of an order of the lists."""
        return torch.cat([order.new_zeros(1), self.length[order].cumsum(0)])

    def cut_anew(self, generator: torch.Generator) -> Tensor:
        """:obj:`perm`, with the edges of what is cut in a new order."""
        if self.cut.numel() == 0:
            return self.perm
        draw = torch.randperm(self.cut.numel(), generator=generator)
        # Stable: within a source node, the edges stay as they were drawn.
        _, place = group(self.cut_source[draw], int(self.cut_source[-1]) + 1)
        perm = self.perm.clone()
        perm[self.cut] = self.perm[self.cut[arrange(draw, place)]]
        return perm


def _cut(before: Tensor, batch_size: Optional[int],
         max_edges: Optional[int]) -> Tensor:
    """The bounds of batches that take as many lists in turn as they may."""
    num_lists = before.numel() - 1
    place = torch.arange(num_lists)
    end = torch.full_like(place, num_lists)
    # (Larger limits than int64 are none.)
    if batch_size is not None and batch_size < num_lists:
        end = end.clamp(max=place + batch_size)
    if max_edges is not None and max_edges < int(before[-1]):
        last = torch.searchsorted(before, before[:-1] + max_edges, right=True)
        end = torch.minimum(end, torch.maximum(last - 1, place + 1))
    jump, bounds = end.tolist(), [0]
    while bounds[-1] < num_lists:
        bounds.append(jump[bounds[-1]])
    return torch.tensor(bounds)


def _split(bounds: Tensor, before: Tensor, number: int) -> Tensor:
    """Splits the largest batches until there are :obj:`number`; adds empty
    ones if all of them have come down to one list."""
    while bounds.numel() - 1 < number:
        missing = number - bounds.numel() + 1
        many = (bounds.diff() > 1).nonzero().view(-1)
        if many.numel() == 0:
            return torch.cat([bounds, bounds[-1:].expand(missing)])
        size = before[bounds].diff()[many]
        many = many[size.argsort(descending=True, stable=True)[:missing]]
        first, last = bounds[many], bounds[many + 1]
        half = (before[first] + before[last]) // 2
        middle = torch.searchsorted(before, half)
        middle = torch.maximum(torch.minimum(middle, last - 1), first + 1)
        bounds = torch.cat([bounds, middle]).sort().values
    return bounds


def _deal(size: Tensor, num_replicas: int,
          generator: Optional[torch.Generator]) -> Tensor:
    """Which batch each process takes in each step, shape
    :obj:`[num_steps, num_replicas]`: such of about the same size at a time,
    and about the same number of edges for each process in all."""
    row = size.argsort(descending=True, stable=True).view(-1, num_replicas)
    row[1::2] = row[1::2].flip(1)  # who had the largest gets the smallest
    if generator is None:
        return row[row.amin(dim=1).argsort()]
    return row[torch.randperm(row.size(0), generator=generator)]


def _ranges(start: Tensor, length: Tensor) -> Tensor:
    """:obj:`start[i], start[i] + 1, ...`, :obj:`length[i]` numbers each."""
    shift = start - (length.cumsum(0) - length)
    total = int(length.sum())
    return shift.repeat_interleave(length) + torch.arange(total)


_EPOCH, _TRIAL, _CUT = range(3)  # what random numbers are for


def _generator(*key: int) -> torch.Generator:
    """Random numbers that differ between keys; a sum would not do."""
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(seed) >> 1)


def _checksum(index: Tensor) -> int:
    """Tells other edges, or another order of them, apart."""
    total = torch.zeros((), dtype=torch.int64)
    for i, chunk in enumerate(index.split(2**20)):
        place = torch.arange(chunk.numel()) + (i << 20) + 1
        total += torch.dot(chunk, place)  # modulo 2^64
    return int(total)


# Checks ######################################################################


def _check_sources(value: Any) -> Tensor:
    check_index('edge_label_index', value)
    if value.dim() != 1:
        value = check_edge_index('edge_label_index', value)[0]
    return value.detach().as_subclass(Tensor).cpu().long().contiguous()


def _check_limit(name: str, value: Optional[int]) -> Optional[int]:
    if value is not None and check_count(name, value) == 0:
        raise ValueError(f"'{name}' must be at least 1, or None (got 0)")
    return value


def _check_rank(num_replicas: Optional[int],
                rank: Optional[int]) -> Tuple[int, int]:
    there = dist.is_available() and dist.is_initialized()
    if num_replicas is None:
        num_replicas = dist.get_world_size() if there else 1
    if rank is None:
        rank = dist.get_rank() if there else 0
    if _check_limit('num_replicas', num_replicas) is None or (
            check_count('rank', rank) >= num_replicas):
        raise ValueError(f"'rank' must be below the 'num_replicas' of "
                         f"{num_replicas} (got {rank})")
    return num_replicas, rank


def _label_index(data: Any, edge_type: Optional[EdgeType]) -> Tensor:
    """The :obj:`edge_label_index` of a graph that has all its nodes."""
    if isinstance(data, HeteroData):
        if edge_type is None or edge_type not in data.edge_types:
            raise ValueError(f"'edge_type' must be one of the edge types of "
                             f"the graph, {data.edge_types} (got "
                             f"{edge_type!r})")
        store, nodes = data[edge_type], (edge_type[0], edge_type[-1])
        size = tuple(data[key].num_nodes for key in nodes)
    elif isinstance(data, Data):
        if edge_type is not None:
            raise ValueError(f"'edge_type' must be None for a homogeneous "
                             f"graph (got {edge_type!r})")
        store, size = data, (data.num_nodes, data.num_nodes)
    else:
        raise TypeError(f"'data' must be a Data or HeteroData graph (got "
                        f"{describe(data)})")
    if 'edge_label_index' not in store:
        raise ValueError("'data' has no 'edge_label_index' for these edges; "
                         "RandomLinkSplit makes one, or pass "
                         "'data.edge_index' to SourceNodeSampler")
    index = check_edge_index('edge_label_index', store['edge_label_index'])
    for row, num_nodes in zip(index, size):
        count_groups('edge_label_index', row, num_nodes)
    return index
