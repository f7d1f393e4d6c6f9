"""Makes the table and the plot of the runs of ``benchmarks.ranking_quality``.

.. code-block:: bash

    python -m benchmarks.ranking_report
"""
from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from benchmarks.ranking_quality import RUNS, read_runs

METRICS = ('RBO', 'NDCG@10', 'Kendall')
# The 97.5 % quantile of Student's t with n - 1 degrees of freedom.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447,
           8: 2.365, 9: 2.306, 10: 2.262}

Runs = List[Dict[str, Any]]


class Interval(NamedTuple):
    """A mean, its standard deviation and the half-width of the interval that
    holds the true mean in 95 of 100 cases."""
    mean: float
    std: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        n, std = len(values), statistics.stdev(values)
        return cls(statistics.fmean(values), std, STUDENT[n] * std / n**0.5)


class Row(NamedTuple):
    """The final runs of a recipe, by seed, and how they were chosen."""
    recipe: str
    runs: Dict[int, Dict[str, Any]]
    sweep: Optional[float]  # mean validation RBO of the chosen configuration

    def test(self, metric: str) -> List[float]:
        return [run['test'][metric] for run in self.runs.values()]

    def gain(self, other: Row, metric: str = 'RBO') -> Interval:
        """The difference from another recipe on the same splits."""
        return Interval.of([run['test'][metric] -
                            other.runs[seed]['test'][metric]
                            for seed, run in self.runs.items()
                            if seed in other.runs])


def collect(runs: Runs) -> List[Row]:
    """The recipes that were tested, the best test RBO first."""
    names = dict.fromkeys(run['recipe'] for run in runs
                          if run['stage'] == 'final')
    rows = []
    for name in names:
        final = {run['seed']: run for run in runs
                 if run['stage'] == 'final' and run['recipe'] == name}
        any_run = next(iter(final.values()))
        sweep = [run['val'] for run in runs if run['stage'] == 'sweep' and all(
            run[key] == any_run.get(key)
            for key in ('recipe', 'lr', 'weight_decay'))]
        if len(final) > 1:
            rows.append(Row(name, dict(sorted(final.items())),
                            statistics.fmean(sweep) if sweep else None))
    return sorted(rows, key=lambda row: -statistics.fmean(row.test('RBO')))


def tuned_mse(rows: Sequence[Row]) -> Row:
    """The squared error whose size does best in validation."""
    return max((row for row in rows if row.recipe.split(' ×')[0] == 'MSE'),
               key=lambda row: row.sweep or 0.0)


def is_table_row(row: Row) -> bool:
    return 'predictions' not in row.recipe


def table(rows: Sequence[Row]) -> str:
    base = tuned_mse(rows)
    lines = ['| training loss | lr, weight decay | RBO p=0.9 | NDCG@10 | '
             'Kendall tau-b | RBO, last evaluations | RBO over tuned MSE |',
             '| --- | --- | --- | --- | --- | --- | --- |']
    for row in rows:
        if not is_table_row(row):
            continue
        run = next(iter(row.runs.values()))
        config = (f"{run['lr']:g}, {run['weight_decay']:g}" if 'lr' in run
                  else '')
        cells = [row.recipe, config]
        for metric in METRICS:
            value = Interval.of(row.test(metric))
            cells.append(f'{value.mean:.4f} ± {value.std:.4f}')
        last = [run['last'] for run in row.runs.values() if 'last' in run]
        cells.append(f'{statistics.fmean(last):.4f}' if last else '')
        gain = row.gain(base)
        cells.append('(the base)' if row is base else
                     f'{gain.mean:+.4f} ± {gain.half:.4f}')
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def stretch_table(rows: Sequence[Row]) -> str:
    """What multiplying the predictions changes."""
    by_name = {row.recipe: row for row in rows}
    lines = ['| training loss | RBO | change |', '| --- | --- | --- |']
    for name, row in by_name.items():
        plain = by_name.get(name.split(', predictions')[0])
        if is_table_row(row) or plain is None:
            continue
        gain = row.gain(plain)
        lines.append(f"| {name} | {Interval.of(row.test('RBO')).mean:.4f} | "
                     f'{gain.mean:+.4f} ± {gain.half:.4f} |')
    return '\n'.join(lines) if len(lines) > 2 else ''


def ablation_table(runs: Runs) -> str:
    """Other options of RankingLoss, on the same splits."""
    lines = ['| option | RBO | RBO, last evaluations | over the default |',
             '| --- | --- | --- | --- |']
    runs = [run for run in runs if run['stage'] == 'ablation']
    names = dict.fromkeys(run['recipe'] for run in runs)
    rows = [Row(name, {run['seed']: run for run in runs
                       if run['recipe'] == name}, None) for name in names]
    for row in rows:
        gain = row.gain(rows[0])
        last = statistics.fmean(run['last'] for run in row.runs.values())
        mean = statistics.fmean(row.test('RBO'))
        lines.append(f'| {row.recipe} | {mean:.4f} | {last:.4f} | '
                     f'{gain.mean:+.4f} ± {gain.half:.4f} |')
    return '\n'.join(lines) if rows else ''


def plot(tables: Dict[str, Sequence[Row]], path: Path) -> None:
    """The gain in each metric over the tuned squared error."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, len(tables), figsize=(5.0 * len(tables), 5.5),
                             layout='constrained', squeeze=False)
    for ax, (dataset, rows) in zip(axes[0], tables.items()):
        base = tuned_mse(rows)
        shown = [row for row in rows[::-1] if is_table_row(row)
                 and row is not base and not row.recipe.startswith('(')]
        for k, metric in enumerate(METRICS[::2]):
            gains = [row.gain(base, metric) for row in shown]
            ax.errorbar([gain.mean for gain in gains],
                        [y + 0.2 * k for y in range(len(shown))],
                        xerr=[gain.half for gain in gains], fmt='o',
                        markersize=4, capsize=2, label=metric)
        ax.set_yticks(range(len(shown)), [row.recipe for row in shown])
        ax.axvline(0.0, color='0.6', linestyle=':')
        ax.set(title=dataset, xlabel='gain over the tuned MSE\n'
               '(mean and 95 % interval)')
        ax.legend()
    fig.savefig(path, dpi=100)
    plt.close(fig)


def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--runs', type=Path, default=RUNS)
    args = parser.parse_args(argv)
    runs = read_runs(args.runs)
    tables = {}
    for dataset in dict.fromkeys(run['dataset'] for run in runs):
        rows = collect([run for run in runs if run['dataset'] == dataset])
        tables[dataset] = rows
        parts = (table(rows), stretch_table(rows), ablation_table(
            [run for run in runs if run['dataset'] == dataset]))
        print('\n\n'.join((f'\n### {dataset}', *filter(None, parts))))
    hours = sum(run.get('seconds', 0.0) for run in runs) / 3600
    print(f'{len(runs)} runs, {hours:.1f} hours of one core')
    plot(tables, args.runs.with_suffix('.png'))


if __name__ == '__main__':
    main()
