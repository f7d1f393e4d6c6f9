"""Runs the cases, prints a table of ratios and writes it as JSON.

Each case runs in a process of its own, all its peers in turn. The layers run
a second time with ``THP_MEM_ALLOC_ENABLE=1``, where a fresh tensor costs no
page faults, and once for each peer to see what memory it takes.
"""
from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import torch

from benchmarks import cases
from benchmarks.timing import extra_memory, interleave

RESULTS = Path(__file__).parent / 'results'


def run_child(args: List[str], **env: str) -> Any:
    result = subprocess.run([sys.executable, '-m', 'benchmarks', *args],
                            env={**os.environ, **env}, check=False, text=True,
                            stdout=subprocess.PIPE)
    if result.returncode != 0:
        return None
    return json.loads(result.stdout.splitlines()[-1])


def measure(name: str, args: argparse.Namespace) -> List[Dict[str, Any]]:
    common = ['--threads', str(args.threads), '--repeats', str(args.repeats)]
    rows = []
    settings = ['default']
    if name.startswith('layer 128'):
        settings.append('no page faults')
    for setting in settings:
        env = {} if setting == 'default' else {'THP_MEM_ALLOC_ENABLE': '1'}
        result = run_child(['--time', name, *common], **env)
        if result is None:
            rows.append(dict(case=name, step='failed', setting=setting))
            continue
        for step, numbers in result.items():
            row = dict(case=name, step=step, setting=setting, **numbers)
            if args.memory and setting == 'default' and 'seconds' in row:
                row['extra_bytes'] = run_child(
                    ['--memory-of', f'{name}|{step}', *common])
            rows.append(row)
            print(format_row(row), flush=True)
    return rows


HEADER = ['case', 'step', 'setting', 'ms', 'ratio', 'CPU ratio', 'extra MB']


def format_row(row: Dict[str, Any]) -> str:
    if 'seconds' not in row:
        return (f"| {row['case']} | {row['step']} | {row['setting']} | "
                f"{row.get('error', '')} |")
    extra = row.get('extra_bytes')
    cells = [row['case'], row['step'], row['setting'],
             f"{row['seconds'] * 1e3:.2f}", f"{row['ratio']:.2f}",
             f"{row['cpu_ratio']:.2f}",
             '' if extra is None else f'{extra / 1e6:.0f}']
    return '| ' + ' | '.join(cells) + ' |'


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks',
                                     description=__doc__)
    parser.add_argument('--only', help='cases whose name contains this')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--threads', type=int,
                        default=torch.get_num_threads())
    parser.add_argument('--no-memory', dest='memory', action='store_false')
    parser.add_argument('--output', type=Path)
    parser.add_argument('--time', help=argparse.SUPPRESS)
    parser.add_argument('--memory-of', help=argparse.SUPPRESS)
    return parser.parse_args()


def environment() -> Dict[str, str]:
    from pyg_rankspmm.info import info
    return info()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    if args.time:
        print(json.dumps(interleave(cases.CASES[args.time](), args.repeats)))
        return
    if args.memory_of:
        name, step = args.memory_of.split('|')
        print(json.dumps(extra_memory(cases.CASES[name]()[step])))
        return
    print('| ' + ' | '.join(HEADER) + ' |\n|' + '---|' * len(HEADER))
    rows = []
    for name in cases.CASES:
        if args.only is None or args.only in name:
            rows += measure(name, args)
    now = datetime.datetime.now(datetime.timezone.utc)
    output = args.output or RESULTS / f'{now:%Y%m%d-%H%M%S}.json'
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(dict(environment=environment(), rows=rows),
                                 indent=1) + '\n')
    print(f'Written to {output}')


if __name__ == '__main__':
    main()
