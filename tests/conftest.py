"""Settings that all tests share."""
from hypothesis import settings

# The first example of a test may compile or import something; a deadline
# would blame the code for a busy machine.
settings.register_profile('pyg_rankspmm', deadline=None)
settings.load_profile('pyg_rankspmm')
