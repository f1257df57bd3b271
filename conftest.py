"""For every test of the workspace."""

from hypothesis import settings

# A machine that is busy with something else must not fail a test: timings belong to benchmarks.
settings.register_profile("workspace", deadline=None)
settings.load_profile("workspace")
