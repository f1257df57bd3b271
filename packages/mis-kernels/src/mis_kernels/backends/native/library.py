"""The native library for x86-64 CPUs with AMX: compiled into the wheel, loaded at first use.

See `native/` for its source and `hatch_build.py` for how it is compiled. Where it is missing, or the CPU lacks
what it needs, everything that could use it has another implementation.
"""

import ctypes
from functools import cache
from importlib import resources
from pathlib import Path

import jax

LIBRARY = "lib/native.so"  # in a folder of its own: beside modules, it would pass for one
FUNCTIONS = ("mis_segment_attention", "mis_packed_linear", "mis_rms_norm", "mis_norm_rope")
_NEEDED = {"amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"}


@cache
def why_not() -> str | None:
    """Load the library; return what it needs and this machine or installation lacks, or None if it is there."""
    lacking = _NEEDED - _cpu_flags()
    if lacking:
        return f"needs a CPU with {', '.join(sorted(lacking))}"
    path = resources.files("mis_kernels") / LIBRARY
    if not path.is_file():
        return "the native library was not compiled when mis-kernels was installed"
    library = ctypes.CDLL(str(path))
    if library.mis_request_tile_registers():
        return "needs an operating system that gives out the tile registers of AMX"
    for name in FUNCTIONS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return None


def _cpu_flags() -> set[str]:
    """Return what Linux says the CPU can do; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
