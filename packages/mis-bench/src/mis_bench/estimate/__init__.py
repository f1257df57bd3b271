"""What the engine would do on TPUs, computed on a machine that has none.

The real scheduler plans real requests, the real step is compiled for the topology by the TPU's compiler, and
every operation of it is priced: by the compiler's own estimate in cycles, or, for Pallas kernels, by their
schedule. `docs/runbooks/estimate.md` has the method and its limits.
"""
