"""Measurements against other packages: ``python -m benchmarks``."""
