"""Settings that all tests share."""
import importlib.util
import os
import sys

from hypothesis import HealthCheck, settings

# The first example of a test may compile or import something; a deadline
# would blame the code for a busy machine.
PATIENT = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile('pyg_rankspmm', **PATIENT)
settings.register_profile('fuzz', max_examples=2000, **PATIENT)
settings.load_profile('pyg_rankspmm')


def _load_extension(path: str) -> None:
    """Puts another build of the kernels in the place of the installed one."""
    spec = importlib.util.spec_from_file_location('pyg_rankspmm._C', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


# For 'make sanitize'.
EXTENSION = os.environ.get('TEST_EXTENSION')
if EXTENSION:
    _load_extension(EXTENSION)


def pytest_report_header():
    return f'kernels: {EXTENSION}' if EXTENSION else None
