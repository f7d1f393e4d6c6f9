"""The Python blocks of the guide run, each on its own."""
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[1] / 'docs' / 'ranking_guide.md'
BLOCKS = re.findall(r'^```python\n(.*?)^```', GUIDE.read_text('utf-8'),
                    re.DOTALL | re.MULTILINE)


def test_guide_has_blocks():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize('block', BLOCKS, ids=range(len(BLOCKS)))
def test_block(block):
    exec(compile(block, str(GUIDE), 'exec'), {'__name__': '__main__'})
