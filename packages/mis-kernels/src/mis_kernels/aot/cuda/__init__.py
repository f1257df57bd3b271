"""Compiles for NVIDIA GPUs that this machine does not have: `python -m mis_kernels.aot.cuda`."""
