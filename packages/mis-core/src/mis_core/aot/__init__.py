"""Compiles the engine's whole step for TPUs that this machine does not have: `python -m mis_core.aot`."""
