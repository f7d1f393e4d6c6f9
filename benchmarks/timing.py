"""Time and memory of functions, in ratios that a busy machine spoils least."""
from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict

import torch

Step = Callable[[], Any]


def interleave(steps: Dict[str, Step], repeats: int) -> Dict[str, Any]:
    """Runs all steps in turn, so that whatever slows the machine down slows
    all of them. The first one is what the others are compared with.

    The ratio of a step is the median over the rounds of its time by that of
    the first one in the same round. A step that fails is left out, with the
    reason. CPU time counts all threads; it ignores
    who else is waiting for a core, but not who else fills the caches.
    """
    wall: Dict[str, list] = {name: [] for name in steps}
    cpu: Dict[str, list] = {name: [] for name in steps}
    failed = {}
    for name, step in steps.items():
        try:
            step()
        except RuntimeError as error:  # such as too little memory
            failed[name] = str(error).splitlines()[0]
    steps = {name: step for name, step in steps.items() if name not in failed}
    for _ in range(repeats):
        for name, step in steps.items():
            start = time.perf_counter(), time.process_time()
            step()
            wall[name].append(time.perf_counter() - start[0])
            cpu[name].append(time.process_time() - start[1])
    first = next(iter(steps))
    return {name: {'error': error} for name, error in failed.items()} | {
        name: {
            'seconds': statistics.median(wall[name]),
            'ratio': _ratio(wall[name], wall[first]),
            'cpu_seconds': statistics.median(cpu[name]),
            'cpu_ratio': _ratio(cpu[name], cpu[first]),
        }
        for name in steps
    }


def _ratio(times: list, base: list) -> float:
    return statistics.median(t / b for t, b in zip(times, base))


def extra_memory(step: Step) -> int:
    """Bytes of the process's peak above its size before a step (Linux)."""
    before = status('VmRSS')
    with open('/proc/self/clear_refs', 'w') as f:
        f.write('5')  # forget the peak so far
    result = step()
    del result
    return status('VmHWM') - before


def status(field: str) -> int:
    with open('/proc/self/status') as f:
        for line in f:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def power_law_graph(num_nodes: int, num_edges: int,
                    seed: int = 0) -> torch.Tensor:
    """A symmetric graph of ``num_edges`` directed edges, in random order,
    whose degrees follow a power law."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randperm(num_nodes, generator=g)

    def draw() -> torch.Tensor:
        u = torch.rand(num_edges // 2, generator=g)
        return label[(num_nodes * u**2.2).long().clamp(max=num_nodes - 1)]

    a, b = draw(), draw()
    edge_index = torch.stack([torch.cat([a, b]), torch.cat([b, a])])
    order = torch.randperm(edge_index.size(1), generator=g)
    return edge_index[:, order].contiguous()
