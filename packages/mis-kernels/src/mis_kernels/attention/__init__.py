"""Attention over ragged segments: `api` is the op, the other modules are its implementations."""
