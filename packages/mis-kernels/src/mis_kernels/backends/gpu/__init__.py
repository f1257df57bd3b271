"""Attention on NVIDIA GPUs as one launch a layer, written in Pallas."""
