"""The tables of the page on benchmarks, from the results that are there."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List


def write(results: Path, output: Path) -> None:
    """Writes a table for each result of ``python -m benchmarks``."""
    parts = []
    for path in sorted(results.glob('*.json')):
        result = json.loads(path.read_text('utf-8'))
        if isinstance(result, dict) and {'environment', 'rows'} <= set(result):
            parts.append(_section(path.name, result))
    output.parent.mkdir(exist_ok=True)
    output.write_text('\n'.join(parts), 'utf-8')


def _section(name: str, result: Dict[str, Any]) -> str:
    env = result['environment']
    about = (f"torch {env['torch']}, torch_geometric "
             f"{env['torch_geometric']}, kernels: {env['kernels']}, SIMD "
             f"level {env['SIMD level']}, threads: {env['threads']}.")
    head = ['case', 'step', 'allocator', 'time', 'ratio', 'extra memory']
    lines = [f'### {name}', '', about, '', _line(head),
             _line(['---'] * len(head))]
    lines += [_line(_cells(row)) for row in result['rows']
              if 'seconds' in row or 'extra_bytes' in row]
    return '\n'.join([*lines, ''])


def _cells(row: Dict[str, Any]) -> List[str]:
    seconds, extra = row.get('seconds'), row.get('extra_bytes')
    return [row['case'], row['step'], row['setting'],
            '' if seconds is None else f'{1e3 * seconds:.1f} ms',
            '' if seconds is None else f"{row['ratio']:.2f}",
            '' if extra is None else f'{extra / 1e6:,.0f} MB']


def _line(cells: List[str]) -> str:
    return '| ' + ' | '.join(cells) + ' |'
