"""Draws speed.png: time and memory of GATConv and SparseGATConv, from the
results of ``python -m benchmarks``.

.. code-block:: bash

    python docs/figures/speed.py RESULTS.json [MORE.json ...]

Times are of the first file that has them, memory of the first that has it.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

OUTPUT = Path(__file__).with_name('speed.png')
CASES = ['layer 128 -> 8x32', 'layer 128 -> 4x32', 'layer 128 -> 8x8',
         'layer 128 -> 1x128']
LAYERS = {'PyG GATConv': ('GATConv', '#d97706'),
          'ours': ('SparseGATConv', '#0284c7')}
TEXT = '#7d8590'  # readable on white and on black; the background is clear
STYLE = {'font.size': 11, 'text.color': TEXT, 'axes.labelcolor': TEXT,
         'axes.edgecolor': TEXT, 'xtick.color': TEXT, 'ytick.color': TEXT}


def find(files: List[Dict[str, Any]], case: str, step: str,
         field: str) -> float:
    for result in files:
        for row in result['rows']:
            if ((row['case'], row['step'], row['setting'])
                    == (case, step, 'default') and row.get(field)):
                return row[field]
    raise ValueError(f"no {field!r} of {step!r} in {case!r}; run 'python -m "
                     f"benchmarks' with memory, and give its file")


def draw(ax: Axes, files: List[Dict[str, Any]], field: str, scale: float,
         unit: str, title: str) -> None:
    for k, (step, (name, color)) in enumerate(LAYERS.items()):
        values = [find(files, case, step, field) * scale for case in CASES]
        rows = [i + 0.38 * (k - 0.5) for i in range(len(CASES))]
        bars = ax.barh(rows, values, 0.36, color=color, label=name)
        ax.bar_label(bars, [f'{v:#.2g} {unit}'.replace('. ', ' ')
                            for v in values], padding=3, fontsize=10)
    ax.set_title(title, fontsize=11)
    ax.set_yticks(range(len(CASES)),
                  [f"{case.split()[-1].replace('x', ' × ')}"
                   for case in CASES])
    ax.margins(x=0.18)
    ax.set_xticks([])
    for side in ('top', 'right', 'bottom'):
        ax.spines[side].set_visible(False)


def main(paths: List[str]) -> None:
    files = [json.loads(Path(path).read_text('utf-8')) for path in paths]
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(9, 3.8),
                                 layout='constrained', sharey=True)
        draw(axes[0], files, 'seconds', 1, 's', 'time (two threads)')
        draw(axes[1], files, 'extra_bytes', 1e-9, 'GB',
             'memory on top of the input')
        axes[0].set_ylabel('heads × channels')
        axes[0].invert_yaxis()
        fig.suptitle('One layer, forward and backward: 170,000 nodes, '
                     '2.3 M edges, on a CPU', fontsize=11)
        handles, labels = axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc='outside lower center', ncols=2,
                   frameon=False)
        fig.savefig(OUTPUT, dpi=110, transparent=True)


if __name__ == '__main__':
    main(sys.argv[1:])
