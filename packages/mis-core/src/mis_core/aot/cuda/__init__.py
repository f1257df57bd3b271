"""Compiles the engine's whole step for NVIDIA GPUs that this machine does not have: `python -m mis_core.aot.cuda`."""
