"""The notebooks run from top to bottom, and are committed with outputs."""
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob('notebooks/*.ipynb'))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def test_runs(notebook, monkeypatch):
    # As pytest itself, the kernel finds the package without installing it.
    path = os.environ.get('PYTHONPATH', '')
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(ROOT), path]))
    client = NotebookClient(notebook, timeout=600, kernel_name='python3',
                            resources={'metadata': {
                                'path': str(ROOT / 'notebooks')}})
    client.execute()  # raises what a cell raises


def test_outputs_are_those_of_one_run(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == 'code']
    count = [cell.execution_count for cell in cells]
    assert count == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any('image/png' in output.get('data', {}) for output in outputs)
    for output in outputs:
        assert output.output_type != 'error'
        assert output.get('name') != 'stderr'


def test_each_plot_says_what_to_see(notebook):
    """The cell after a plot is a text that begins with that."""
    for cell, after in zip(notebook.cells, notebook.cells[1:]):
        outputs = cell.get('outputs', [])
        if any('image/png' in output.get('data', {}) for output in outputs):
            assert after.source.startswith('**What to see:**')


def test_is_small(notebook):
    assert len(nbformat.writes(notebook)) < 500_000
