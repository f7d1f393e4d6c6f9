"""GATConv on the fused attention operator."""
from __future__ import annotations

import inspect
from typing import Any, FrozenSet, Optional, Tuple, Union, cast

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric.nn import GATConv, Linear, MessagePassing
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.typing import SparseTensor, torch_sparse
from torch_geometric.utils import (
    add_self_loops,
    is_sparse,
    is_torch_sparse_tensor,
    remove_self_loops,
    scatter,
)
from torch_geometric.utils.sparse import set_sparse_value

from pyg_rankspmm import graph as G
from pyg_rankspmm.graph import Graph, from_edge_index
from pyg_rankspmm.ops.attention import attention, attention_weights
from pyg_rankspmm.ops.spmm import matmul
from pyg_rankspmm.typing import (
    Adj,
    Size,
    check_device,
    check_float,
    check_length,
    check_tensor,
    describe,
)

# Whoever replaces one of these wants to see the messages.
_MESSAGE_METHODS = {
    name: getattr(GATConv, name)
    for name in ('message', 'aggregate', 'update', 'edge_update',
                 'explain_message', 'message_and_aggregate')
}
_GENERATED_METHODS = ('propagate', 'edge_updater')  # by PyG, for each class
_MESSAGE_HOOKS = tuple(f'_{name}_forward_{kind}'
                       for name in ('propagate', 'message', 'aggregate',
                                    'message_and_aggregate', 'edge_update')
                       for kind in ('pre_hooks', 'hooks'))

_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(GATConv).parameters.items()
    if parameter.default is not parameter.empty and name != 'heads'
}


class SparseGATConv(GATConv):
    r"""The graph attentional operator from the `"Graph Attention Networks"
    <https://arxiv.org/abs/1710.10903>`_ paper, in memory that follows the
    number of edges,

    .. math::
        \mathbf{x}^{\prime}_i = \sum_{j \in \mathcal{N}(i) \cup \{ i \}}
        \alpha_{i,j}\mathbf{\Theta}_s\mathbf{x}_{j}, \qquad
        \alpha_{i,j} = \mathrm{softmax}_j \left( \mathrm{LeakyReLU} \left(
        \mathbf{a}^{\top}_{s} \mathbf{\Theta}_{s}\mathbf{x}_j
        + \mathbf{a}^{\top}_{t} \mathbf{\Theta}_{t}\mathbf{x}_i
        + \mathbf{a}^{\top}_{e} \mathbf{\Theta}_{e}\mathbf{e}_{i,j}
        \right) \right).

    A drop-in replacement of :class:`torch_geometric.nn.GATConv`: the same
    arguments, parameters, :obj:`state_dict` and numbers.
    The attention is one operator, forward and backward, which never writes a
    message for each edge; the attention vectors are multiplied into the
    projection, not with its result.

    What must see the messages gets them: with message passing hooks,
    explainers, another :obj:`aggr` than :obj:`"add"`, or a subclass that
    overrides :meth:`message` and the like, the layer takes the path of
    :class:`~torch_geometric.nn.GATConv`.

    In training with dropout, the masks differ from those of
    :class:`~torch_geometric.nn.GATConv`; they follow
    :func:`torch.manual_seed` alike.

    Args:
        in_channels (int or tuple): Size of each input sample, or :obj:`-1` to
            derive the size from the first input(s) to the forward method. A
            tuple corresponds to the sizes of source and target
            dimensionalities in case of a bipartite graph.
        out_channels (int): Size of each output sample.
        heads (int, optional): Number of attention heads.
            (default: :obj:`1`)
        concat (bool, optional): If set to :obj:`False`, the heads are averaged
            instead of concatenated. (default: :obj:`True`)
        negative_slope (float, optional): Slope of LeakyReLU for negative
            logits. (default: :obj:`0.2`)
        dropout (float, optional): The rate at which attention weights are
            dropped in training. (default: :obj:`0`)
        add_self_loops (bool, optional): If set to :obj:`False`, will not add
            self-loops to the input graph. (default: :obj:`True`)
        edge_dim (int, optional): Edge feature dimensionality (in case there
            are any). (default: :obj:`None`)
        fill_value (float or torch.Tensor or str, optional): The edge features
            of self-loops: given, or a reduction (:obj:`"add"`,
            :obj:`"mean"`, :obj:`"min"`, :obj:`"max"`, :obj:`"mul"`) of those
            of the edges that point to the node. (default: :obj:`"mean"`)
        bias (bool, optional): If set to :obj:`False`, the layer will not learn
            an additive bias. (default: :obj:`True`)
        residual (bool, optional): If set to :obj:`True`, the layer will add a
            learnable skip-connection. (default: :obj:`False`)
        **kwargs (optional): Additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **input:**
          node features :math:`(|\mathcal{V}|, F_{in})` or
          :math:`((|\mathcal{V_s}|, F_{s}), (|\mathcal{V_t}|, F_{t}))`
          if bipartite,
          edge indices :math:`(2, |\mathcal{E}|)`,
          edge features :math:`(|\mathcal{E}|, D)` *(optional)*
        - **output:** node features :math:`(|\mathcal{V}|, H * F_{out})` or
          :math:`(|\mathcal{V}_t|, H * F_{out})` if bipartite.
          If :obj:`return_attention_weights=True`, then also the edges and
          their weights :math:`(|\mathcal{E}|, H)`.

    Example:
        >>> conv = SparseGATConv(8, 16, heads=4)
        >>> x = torch.randn(3, 8)
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> conv(x, edge_index).shape
        torch.Size([3, 64])
    """
    # PyG generates these two for each class, from those it finds: it must not
    # find what it has generated for GATConv, which explains nothing.
    propagate = MessagePassing.propagate
    edge_updater = MessagePassing.edge_updater

    _overridden: FrozenSet[str] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _GENERATED_METHODS:
            if name in cls.__dict__:
                cls._overridden |= {name}
            elif name not in cls._overridden:
                setattr(cls, name, getattr(MessagePassing, name))

    def forward(
        self,
        x: Union[Tensor, Tuple[Tensor, Optional[Tensor]]],
        edge_index: Adj,
        edge_attr: Optional[Tensor] = None,
        size: Size = None,
        return_attention_weights: Optional[bool] = None,
    ) -> Any:
        r"""Runs the forward pass of the module.

        Args:
            x (torch.Tensor or (torch.Tensor, torch.Tensor)): The input node
                features, shape :obj:`[num_nodes, in_channels]`, floating
                point; a pair for source and target nodes of a bipartite
                graph, of which the second may be :obj:`None`.
            edge_index (torch.Tensor or EdgeIndex or SparseTensor): The edge
                indices, in any form that PyG takes: shape
                :obj:`[2, num_edges]` (source, target), or a sparse matrix with
                one row for each target.
            edge_attr (torch.Tensor, optional): The edge features, shape
                :obj:`[num_edges, edge_dim]`, in the order of the edges in
                :obj:`edge_index`. (default: :obj:`None`)
            size ((int, int), optional): The number of source and target
                nodes. (default: :obj:`None`)
            return_attention_weights (bool, optional): If set to :obj:`True`,
                will additionally return the tuple
                :obj:`(edge_index, attention_weights)`, holding the computed
                attention weights for each edge. (default: :obj:`None`)

        Returns:
            torch.Tensor: Shape :obj:`[num_dst_nodes, heads * out_channels]`,
            or :obj:`[num_dst_nodes, out_channels]` without :obj:`concat`.

        Raises:
            TypeError: If an argument has a wrong type or dtype.
            ValueError: If shapes, sizes, devices or indices do not fit.
            NotImplementedError: For a sparse matrix whose self-loops would
                need edge features.
        """
        if self._must_see_messages() or self._flows_back_bipartite(x):
            return super().forward(x, edge_index, edge_attr, size,
                                   return_attention_weights)

        x_src, x_dst = x if isinstance(x, (tuple, list)) else (x, x)
        self._check_input_features(x_src, x_dst, edge_index)
        num_nodes = self._num_nodes(x_src, x_dst, edge_index, size)

        num_loops = 0
        if self.add_self_loops:
            if is_sparse(edge_index):
                edge_index = self._sparse_with_self_loops(
                    edge_index, edge_attr, min(num_nodes))
            else:
                num_loops = min(num_nodes)

        a_edge = self._edge_logits(edge_index, edge_attr, num_loops)
        h, a_src, a_dst = self._project(x_src, x_dst)
        if h.device.type != 'meta' and torch.is_autocast_enabled(
                h.device.type):
            # As PyG, whose softmax returns float32.
            h, a_src = h.float(), a_src.float()
            a_dst, a_edge = (a if a is None else a.float()
                             for a in (a_dst, a_edge))
        graph = self._graph(edge_index, num_nodes, num_loops)
        dropout = self.dropout if self.training else 0.0
        bias = None
        if self.bias is not None and self.concat:
            bias = self.bias.view(self.heads, self.out_channels)

        alpha = None
        if return_attention_weights:
            alpha = attention_weights(graph, a_src, a_dst, a_edge,
                                      self.negative_slope, dropout)
            out = matmul(graph, alpha.to(h.dtype), h)
            out = out if bias is None else out + bias
        else:
            out = attention(graph, h, a_src, a_dst, a_edge, bias,
                            self.negative_slope, dropout)

        out = self._combine(out, x_dst)
        if alpha is None:
            return out
        return self._with_weights(out, edge_index, alpha, num_loops)

    def _must_see_messages(self) -> bool:
        cls, own = type(self), self.__dict__
        return (bool(self._overridden) or bool(self.explain)
                or type(self.aggr_module) is not SumAggregation
                or any(own[hooks] for hooks in _MESSAGE_HOOKS)
                or 'edge_updater' in own  # PyG itself sets 'propagate'
                or any(name in own or getattr(cls, name) is not original
                       for name, original in _MESSAGE_METHODS.items()))

    def _flows_back_bipartite(self, x: Any) -> bool:
        # PyG sizes the output by the senders there, and refuses most graphs;
        # who relies on it shall get what PyG gives.
        return self.flow == 'target_to_source' and not isinstance(x, Tensor)

    # Input ###################################################################

    def _check_input_features(self, x_src: Any, x_dst: Any,
                              edge_index: Any) -> None:
        for name, x in (('x', x_src), ('x[1]', x_dst)):
            if x is None and name == 'x[1]':
                continue
            check_float(name, x)
            if x.dim() != 2:
                raise ValueError(f"'{name}' must have shape [num_nodes, "
                                 f"in_channels] (got {describe(x)}); static "
                                 f"graphs are not supported")
            check_device(name, x, x_src.device, 'x')
            lin = self.lin_src if name == 'x' else self.lin_dst
            self._check_channels(name, x, lin if self.lin is None else
                                 self.lin)
        check_device('edge_index', edge_index, x_src.device, 'x')
        if self.flow == 'target_to_source' and is_sparse(edge_index):
            raise ValueError(
                "flow='target_to_source' does not take a sparse matrix; pass "
                "its transpose to a layer of the other flow")

    def _check_channels(self, name: str, x: Tensor,
                        lin: torch.nn.Module) -> None:
        # (Not of a lazy layer, or of whatever somebody put there instead.)
        # ('not in (-1, x.size(1))' confuses a compiler that does not know the
        # size yet.)
        if (type(lin) is Linear and lin.in_channels != -1
                and lin.in_channels != x.size(1)):
            raise ValueError(f"'{name}' must have {lin.in_channels} channels, "
                             f"as the layer was built with (got "
                             f"{describe(x)})")

    def _num_nodes(self, x_src: Tensor, x_dst: Optional[Tensor],
                   edge_index: Adj, size: Size) -> Tuple[int, int]:
        """The number of nodes that edge_index[0] and edge_index[1] count."""
        default = x_src.size(0) if x_dst is None else x_dst.size(0)
        num_nodes = G.infer_size(edge_index, size, x_src.size(0), default)
        for dim, x in enumerate((x_src, x_dst)):
            if x is not None and x.size(0) != num_nodes[dim]:
                what = ('source', 'target')[dim]
                raise ValueError(f"'x' holds {x.size(0)} {what} nodes, but "
                                 f"'edge_index' or 'size' say "
                                 f"{num_nodes[dim]}")
        return num_nodes

    def _graph(self, edge_index: Adj, num_nodes: Tuple[int, int],
               num_loops: int) -> Graph:
        if self.flow == 'target_to_source':
            edge_index, num_nodes = edge_index.flip(0), num_nodes[::-1]
        return from_edge_index(edge_index, num_nodes, num_loops)

    # Self-loops ##############################################################

    def _sparse_with_self_loops(self, edge_index: Adj,
                                edge_attr: Optional[Tensor],
                                num_loops: int) -> Adj:
        """A sparse matrix with self-loops, as PyG would build it."""
        if edge_attr is not None:
            raise NotImplementedError(
                "'edge_attr' together with 'add_self_loops' is not supported "
                "for a sparse 'edge_index'; pass a [2, num_edges] tensor, or "
                "set add_self_loops=False")
        if isinstance(edge_index, SparseTensor):
            G.check_sparse_tensor(edge_index)
            if self.edge_dim is None:
                return torch_sparse.set_diag(edge_index)
            raise NotImplementedError(
                "'edge_dim' together with 'add_self_loops' is not supported "
                "for a SparseTensor; pass a [2, num_edges] tensor, or set "
                "add_self_loops=False")
        G.check_torch_sparse(edge_index)
        if edge_index.layout == torch.sparse_csc:
            edge_index = edge_index.to_sparse_csr()
        edge_index, _ = remove_self_loops(edge_index)
        return add_self_loops(edge_index, num_nodes=num_loops,
                              fill_value=self.fill_value)[0]

    def _loop_attr(self, edge_index: Tensor, edge_attr: Tensor,
                   num_loops: int) -> Tensor:
        """The features of the appended self-loops."""
        shape = (num_loops, ) + edge_attr.shape[1:]
        fill = self.fill_value
        if isinstance(fill, Tensor):
            fill = fill.to(edge_attr.device, edge_attr.dtype)
            if fill.dim() != edge_attr.dim():
                fill = fill.unsqueeze(0)
            return fill.expand(shape)
        if not isinstance(fill, str):
            return edge_attr.new_full(shape, 1.0 if fill is None else fill)
        # The self-loops that are replaced do not count; they, and targets
        # without a loop, go behind the end.
        src, dst = edge_index[0].long(), edge_index[1].long()
        index = torch.where((src == dst) | (dst >= num_loops), num_loops, dst)
        try:
            return scatter(edge_attr, index, 0, num_loops + 1,
                           fill)[:num_loops]
        except ValueError as error:
            raise ValueError(f"'fill_value' must be a number, a tensor, or "
                             f"one of 'add', 'mean', 'min', 'max', 'mul' (got "
                             f"{fill!r})") from error

    # Projection ##############################################################

    def _project(
        self,
        x_src: Tensor,
        x_dst: Optional[Tensor],
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """The messages :obj:`[num_src_nodes, heads, channels]` and the logits
        of senders and receivers, :obj:`[num_nodes, heads]`."""
        lin_src, lin_dst = self.lin_src, self.lin_dst
        if self.lin is not None:
            lin_src = lin_dst = self.lin
        h = lin_src(x_src)
        if x_dst is x_src and lin_dst is lin_src:
            a_src, a_dst = self._logits(x_src, lin_src, h, self.att_src,
                                        self.att_dst)
        else:
            a_src, = self._logits(x_src, lin_src, h, self.att_src)
            a_dst = None
            if x_dst is not None:
                a_dst, = self._logits(x_dst, lin_dst, None, self.att_dst)
        return h.view(-1, self.heads, self.out_channels), a_src, a_dst

    def _edge_logits(self, edge_index: Adj, edge_attr: Optional[Tensor],
                     num_loops: int) -> Optional[Tensor]:
        if edge_attr is not None:
            check_tensor('edge_attr', edge_attr)
            check_length('edge_attr', edge_attr, G.num_edges(edge_index),
                         'edge_index')
        if self.lin_edge is None:
            return None
        if edge_attr is None:
            edge_attr = G.own_value(edge_index)
            if edge_attr is None or edge_attr.dim() == 1:
                return None  # PyG takes plain values for weights
        check_float('edge_attr', edge_attr)
        if edge_attr.dim() == 2:
            self._check_channels('edge_attr', edge_attr, self.lin_edge)
        if num_loops > 0:
            loop_attr = self._loop_attr(edge_index, edge_attr, num_loops)
            edge_attr = torch.cat([edge_attr, loop_attr])
        if edge_attr.dim() == 1:
            edge_attr = edge_attr.view(-1, 1)
        return self._logits(edge_attr, self.lin_edge, None, self.att_edge)[0]

    def _logits(self, x: Tensor, lin: torch.nn.Module, h: Optional[Tensor],
                *atts: Tensor) -> Tuple[Tensor, ...]:
        r"""For each attention vector :obj:`att` of shape
        :obj:`[1, heads, channels]`, the products
        :math:`\langle \mathbf{\Theta} \mathbf{x}_i, \mathbf{att} \rangle`,
        shape :obj:`[num_rows, heads]`."""
        H, C = self.heads, self.out_channels
        # Fold the vectors into the weights, unless their product with 'h',
        # which is there already, is cheaper.
        if _is_plain(lin) and (h is None or x.size(-1) <= H * C):
            weight = cast(Tensor, lin.weight).view(H, C, -1)
            folded = [torch.einsum('hcf,hc->hf', weight, att[0])
                      for att in atts]
            return (x @ torch.cat(folded).t()).split(H, dim=-1)
        # A product with a block-diagonal matrix: no N x H x C in between.
        h = (lin(x) if h is None else h)
        eye = torch.eye(H, dtype=h.dtype, device=h.device).unsqueeze(1)
        blocks = [(att[0].unsqueeze(-1) * eye).view(H * C, H) for att in atts]
        return (h @ torch.cat(blocks, dim=1)).split(H, dim=-1)

    # Output ##################################################################

    def _combine(self, out: Tensor, x_dst: Optional[Tensor]) -> Tensor:
        if self.concat:
            out = out.view(-1, self.heads * self.out_channels)
        else:
            out = out.mean(dim=1)
        if self.res is not None and x_dst is not None:
            out = out + self.res(x_dst)
        if self.bias is not None and not self.concat:
            out = out + self.bias
        return out

    def _with_weights(self, out: Tensor, edge_index: Adj, alpha: Tensor,
                      num_loops: int) -> Any:
        if isinstance(edge_index, SparseTensor):
            return out, edge_index.set_value(alpha, layout='coo')
        if is_torch_sparse_tensor(edge_index):
            return out, (set_sparse_value(edge_index, alpha), alpha)
        if num_loops > 0:  # the edges and their order as PyG returns them
            keep = edge_index[0] != edge_index[1]
            alpha = torch.cat([alpha[:-num_loops][keep], alpha[-num_loops:]])
            edge_index, _ = remove_self_loops(edge_index)
            edge_index, _ = add_self_loops(edge_index, num_nodes=num_loops)
        return out, (edge_index, alpha)

    def __repr__(self) -> str:
        """As PyG's, and all other settings that are not the defaults."""
        settings = {name: getattr(self, name, default)
                    for name, default in _DEFAULTS.items()}
        settings['bias'] = self.bias is not None
        changed = [f', {name}={value!r}' for name, value in settings.items()
                   if isinstance(value, Tensor) or value != _DEFAULTS[name]]
        return super().__repr__()[:-1] + ''.join(changed) + ')'


def _is_plain(lin: torch.nn.Module) -> bool:
    """Whether a module is nothing but a product with its weight, so that
    nobody notices if it is not called."""
    return (type(lin) in (Linear, torch.nn.Linear) and lin.bias is None
            and 'forward' not in lin.__dict__
            and not lin._forward_hooks and not lin._forward_pre_hooks
            and not lin._backward_hooks and not lin._backward_pre_hooks
            and not _has_any_global_hook())
