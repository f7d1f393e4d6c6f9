"""The Python blocks of the README run, each on its own."""
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / 'README.md'
BLOCKS = re.findall(r'^```python\n(.*?)^```', README.read_text('utf-8'),
                    re.DOTALL | re.MULTILINE)


def test_readme_has_blocks():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize('block', BLOCKS, ids=range(len(BLOCKS)))
def test_block(block):
    exec(compile(block, str(README), 'exec'), {'__name__': '__main__'})
