"""Ahead-of-time compilation for TPUs on machines that have none: `python -m mis_kernels.aot`.

The TPU compiler ships in the `libtpu` wheel and needs no device. It refuses what would not run,
and its own schedules tell what a kernel costs. Nothing here is imported by the library itself.
"""
