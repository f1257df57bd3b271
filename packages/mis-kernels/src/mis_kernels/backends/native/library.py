"""The native library for x86-64 CPUs with AVX-512: compiled into the wheel, loaded at first use.

See `native/` for its source and `hatch_build.py` for how it is compiled. Where it is missing, or the CPU lacks
what a part of it needs, everything that could use that part has another implementation.
"""

import ctypes
from functools import cache
from importlib import resources
from pathlib import Path

import jax

LIBRARY = "lib/native.so"  # in a folder of its own: beside modules, it would pass for one
FUNCTIONS = (
    *("mis_segment_attention", "mis_packed_linear", "mis_rms_norm", "mis_norm_rope"),
    *("mis_quantize_rows", "mis_int8_product", "mis_logits"),
)
_INT8 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
_BFLOAT16 = _INT8 | {"avx512_bf16"}
_AMX = {"amx_tile", "amx_bf16"}


@cache
def why_not() -> str | None:
    """Load the library; return what bfloat16 needs and this machine or installation lacks, or None if it is there."""
    return _lacking(_BFLOAT16) or _load()


@cache
def has_tiles() -> bool:
    """Whether the CPU multiplies bfloat16 in the tile registers of AMX, and the operating system gives them out."""
    if why_not() is not None or _lacking(_AMX) is not None:
        return False
    return ctypes.CDLL(str(_path())).mis_request_tile_registers() == 0


@cache
def why_not_int8() -> str | None:
    """Load the library; return what int8 needs and this machine or installation lacks, or None if it is there."""
    return _lacking(_INT8) or _load()


def has_int8_tiles() -> bool:
    """Whether the CPU multiplies int8 in tile registers, and the operating system gives them out."""
    return "amx_int8" in _cpu_flags() and has_tiles()


def _path() -> Path:
    return Path(str(resources.files("mis_kernels") / LIBRARY))


@cache
def _load() -> str | None:
    if not _path().is_file():
        return "the native library was not compiled when mis-kernels was installed"
    library = ctypes.CDLL(str(_path()))
    for name in FUNCTIONS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return None


def _lacking(needed: set[str]) -> str | None:
    lacking = needed - _cpu_flags()
    return f"needs a CPU with {', '.join(sorted(lacking))}" if lacking else None


def _cpu_flags() -> set[str]:
    """Return what Linux says the CPU can do; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
