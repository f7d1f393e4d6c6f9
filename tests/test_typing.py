"""What a user reads after a wrong call: what came, and what to do."""
import pytest
import torch

from pyg_rankspmm import (
    RankingLoss,
    SparseGATConv,
    SpecialSpmm,
    soft_rank,
    spmm,
)
from pyg_rankspmm.ops import attention

EDGE_INDEX = torch.tensor([[0, 0, 0, 1, 1], [3, 1, 2, 1, 0]])
VALUE, X = torch.rand(5), torch.randn(4, 8)
PRED = torch.randn(5)

CALLS = {
    'transposed': (
        lambda: spmm(EDGE_INDEX.t(), VALUE, X), ValueError,
        r"\[5, 2\]\); transpose it with 'edge_index.t\(\)'"),
    'transposed labels': (
        lambda: RankingLoss()(PRED, PRED, EDGE_INDEX.t()), ValueError,
        r"transpose it with 'edge_label_index.t\(\)'"),
    'dense': (
        lambda: spmm(torch.eye(4), None, X), ValueError,
        r"\[4, 4\]\); .*'torch_geometric.utils.dense_to_sparse'"),
    'list': (
        lambda: RankingLoss()(PRED, PRED, [0, 0, 0, 1, 1]), TypeError,
        r"'torch.as_tensor\(edge_label_index\)'"),
    'array': (
        lambda: spmm(EDGE_INDEX.numpy(), VALUE, X), TypeError,
        r"'torch.as_tensor\(edge_index\)'"),
    'order of arguments': (
        lambda: RankingLoss()(EDGE_INDEX, PRED, PRED), ValueError,
        r"'pred' must have shape \[num_edges\].* \[2, 5\]"),
    'index too large': (
        lambda: SparseGATConv(8, 4)(X, EDGE_INDEX + 1), ValueError,
        r"from 0 to 3 \(got 4\); by the rows .* there are 4 of these nodes"),
    'negative group': (
        lambda: RankingLoss()(PRED, PRED, EDGE_INDEX - 1), ValueError,
        r"\(got -1\); number the groups from 0 on"),
    'p': (
        lambda: RankingLoss(p=1.5), ValueError,
        r"\(got 1.5\); 1.0 weighs all depths alike"),
    'temperature': (
        lambda: RankingLoss(temperature=0), ValueError,
        r"\(got 0.0\); a small one, such as 0.001"),
    'temperatures': (
        lambda: soft_rank(PRED, EDGE_INDEX[0], torch.tensor([1.0, -1.0])),
        ValueError, r"positive everywhere \(got -1.0\)"),
    'channels of edges': (
        lambda: SparseGATConv(8, 4, edge_dim=2)(X, EDGE_INDEX,
                                                torch.randn(5, 3)),
        ValueError, r"'edge_attr' must have 2 channels.* \[5, 3\]"),
    'fill value': (
        lambda: SparseGATConv(8, 4, edge_dim=2, fill_value='foo')(
            X, EDGE_INDEX, torch.randn(5, 2)),
        ValueError, r"'fill_value' must be .* 'mul' \(got 'foo'\)"),
    'shape of pyGAT': (
        lambda: SpecialSpmm()(EDGE_INDEX, VALUE, 4, X), ValueError,
        r"'shape' must be a pair \(rows, columns\).* \(got int 4\)"),
    'values of pyGAT': (
        lambda: SpecialSpmm()(EDGE_INDEX, VALUE[:3], (2, 4), X), ValueError,
        r"'values' must have .* 5 entries of 'indices'"),
    'rows of pyGAT': (
        lambda: SpecialSpmm()(EDGE_INDEX, VALUE, (1, 4), X), ValueError,
        r"'indices\[0\]' .* \(got 1\); 'shape' is \(1, 4\)"),
    'no graph': (
        lambda: attention(EDGE_INDEX, X.view(4, 2, 4), torch.zeros(4, 2)),
        TypeError, r"'graph' must be a Graph .*'graph.from_edge_index'"),
    'no heads': (
        lambda: attention(_graph(), X, torch.zeros(4, 1)), ValueError,
        r"'x' must have shape \[num_src_nodes, heads, channels\]"),
    'other heads': (
        lambda: attention(_graph(), X.view(4, 2, 4), torch.zeros(4, 1)),
        ValueError, r"'a_src' must have one column for each of the 2 heads"),
}


def _graph():
    from pyg_rankspmm.graph import from_edge_index
    return from_edge_index(EDGE_INDEX, (4, 4))


@pytest.mark.parametrize('name', CALLS)
def test_wrong_call(name):
    call, kind, text = CALLS[name]
    with pytest.raises(kind, match=text):
        call()


def test_an_error_text_is_short():
    with pytest.raises(TypeError) as error:
        RankingLoss()(PRED, PRED, list(range(1_000_000)))
    assert len(str(error.value)) < 200


def test_special_spmm_compiles_with_its_checks():
    module = torch.compile(SpecialSpmm(), backend='aot_eager',
                           fullgraph=True)
    args = EDGE_INDEX, VALUE, (2, 4), X
    assert torch.equal(module(*args), SpecialSpmm()(*args))
