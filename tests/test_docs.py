"""The Python blocks of the README and of the guides run, each on its own."""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = {
    f'{name}-{i}': block
    for name in ('README.md', 'docs/guide.md', 'docs/ranking_guide.md')
    for i, block in enumerate(re.findall(
        r'^```python\n(.*?)^```', (ROOT / name).read_text('utf-8'),
        re.DOTALL | re.MULTILINE))
}


def test_there_are_blocks():
    assert len(BLOCKS) >= 14


@pytest.mark.parametrize('name', BLOCKS)
def test_block(name):
    exec(compile(BLOCKS[name], name, 'exec'), {'__name__': '__main__'})
