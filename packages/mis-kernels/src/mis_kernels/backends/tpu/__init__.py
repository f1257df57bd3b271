"""Pallas kernels for TPUs: attention, writing pages, norms with RoPE."""
