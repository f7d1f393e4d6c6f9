"""Sphinx settings. 'make docs' builds the pages into build/docs."""
import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import benchmark_tables  # noqa: E402

import pyg_rankspmm  # noqa: E402

project = 'pyg_rankspmm'
author = 'pyg_rankspmm contributors'
version = release = pyg_rankspmm.__version__

extensions = [
    'myst_parser',
    'sphinx.ext.autodoc',
    'sphinx.ext.mathjax',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
]
exclude_patterns = ['_generated']
if importlib.util.find_spec('pyg_rankspmm.loader') is None:
    exclude_patterns.append('api/loader.rst')
html_theme = 'furo'
html_title = f'pyg_rankspmm {version}'

myst_enable_extensions = ['amsmath', 'dollarmath']
myst_heading_anchors = 3

# Docstrings as in PyG: types in 'Args:', and a section 'Shapes:'.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ['Shapes']
napoleon_use_ivar = True
autodoc_inherit_docstrings = False
autodoc_member_order = 'bysource'
autodoc_typehints = 'none'

benchmark_tables.write(HERE.parent / 'benchmarks' / 'results',
                       HERE / '_generated' / 'benchmarks.md')
