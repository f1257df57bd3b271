"""The native library for x86-64 with AVX-512 or AVX2, and aarch64 with bfloat16: in the wheel, loaded at first use.

See `native/` for its source and `hatch_build.py` for how it is compiled. Where it is missing, or the CPU lacks
what a part of it needs, everything that could use that part has another implementation.

Two environment variables change that, for tests and to see what a lesser CPU does. Both are read once. `MIS_MAX_ISA`
takes instruction sets of x86-64 away: it names the largest that is used, in the words of XLA's option
`--xla_cpu_max_isa`.
`MIS_NATIVE_LIBRARY` names the file of another library; one that emulates instructions has them on every CPU.
"""

import ctypes
import itertools
import os
import platform
from functools import cache
from importlib import resources
from pathlib import Path

import jax

LIBRARY = "lib/native.so"  # in a folder of its own: beside modules, it would pass for one
LIBRARY_FOR_AVX2 = "lib/native_avx2.so"
FLOAT32_FUNCTIONS = (
    *("mis_float32_segment_attention", "mis_float32_packed_linear"),
    *("mis_float32_rms_norm", "mis_float32_norm_rope"),
)
FUNCTIONS = (
    *("mis_segment_attention", "mis_packed_linear", "mis_rms_norm", "mis_norm_rope"),
    *("mis_int8_product", "mis_logits", "mis_exponentials", "mis_gated_delta"),
    *FLOAT32_FUNCTIONS,
)
LEVELS = {
    "SSE4_2": {"sse4_2"},
    "AVX": {"avx"},
    "AVX2": {"avx2"},
    "AVX512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "AVX512_VNNI": {"avx512_vnni"},
    "AVX512_BF16": {"avx512_bf16"},
    "AMX": {"amx_tile", "amx_bf16", "amx_int8"},
    "AMX_FP16": {"amx_fp16"},
}
"""XLA's names of instruction sets, each with what it adds to those before it, in Linux's words."""

_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_INT8 = {"x86_64": _AVX512 | {"avx512_vnni"}, "aarch64": {"i8mm"}}
_BFLOAT16 = {"x86_64": _INT8["x86_64"] | {"avx512_bf16"}, "aarch64": _INT8["aarch64"] | {"bf16"}}
_FLOAT32 = {"x86_64": _AVX512, "aarch64": _BFLOAT16["aarch64"]}
_AVX2 = {"avx2", "fma"}
_AMX = {"amx_tile", "amx_bf16"}


@cache
def why_not() -> str | None:
    """Load the library; return what bfloat16 needs and this machine or installation lacks, or None if it is there."""
    return _lacking(_BFLOAT16[_machine()]) or _load()


@cache
def has_tiles() -> bool:
    """Whether the CPU multiplies bfloat16 in the tile registers of AMX, and the operating system gives them out."""
    if why_not() is not None or _lacking(_AMX) is not None:
        return False
    return ctypes.CDLL(str(path())).mis_request_tile_registers() == 0


@cache
def why_not_int8() -> str | None:
    """Load the library; return what int8 needs and this machine or installation lacks, or None if it is there."""
    return _lacking(_INT8[_machine()]) or _load()


@cache
def why_not_float32() -> str | None:
    """Load the library; return what float32 needs and this machine or installation lacks, or None if it is there."""
    if _lacking(_FLOAT32[_machine()]) is None:
        return _load()
    return _lacking(_AVX2) or _register(path_for_avx2(), FLOAT32_FUNCTIONS)


def has_int8_tiles() -> bool:
    """Whether the CPU multiplies int8 in tile registers, and the operating system gives them out."""
    return "amx_int8" in _flags() and has_tiles()


def level() -> str | None:
    """Return the largest of `LEVELS` that the CPU has, up to what `MIS_MAX_ISA` allows; None of other CPUs."""
    flags = _flags()
    reached = itertools.takewhile(lambda each: each[1] <= flags, LEVELS.items())
    return next((name for name, _ in reversed(list(reached))), None)


def path() -> Path:
    """Return where the library is, or would be."""
    return _named() or Path(str(resources.files("mis_kernels") / LIBRARY))


def path_for_avx2() -> Path:
    """Return where the library is, or would be, that computes float32 without AVX-512: no line of it uses more."""
    return Path(str(resources.files("mis_kernels") / LIBRARY_FOR_AVX2))


def _named() -> Path | None:
    """Return the file that `MIS_NATIVE_LIBRARY` names; an empty name is none."""
    named = os.environ.get("MIS_NATIVE_LIBRARY")
    return Path(named) if named else None


@cache
def _load() -> str | None:
    return _register(path(), FUNCTIONS)


def _register(file: Path, functions: tuple[str, ...]) -> str | None:
    """Load a library and name its functions to JAX; return why that is impossible, or None."""
    if not file.is_file():
        return f"needs {file}" if _named() else "the native library was not compiled when mis-kernels was installed"
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:  # its message names the file
        return f"needs a native library that can be loaded: {error}"
    for name in functions:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return None


def _lacking(needed: set[str]) -> str | None:
    lacking = needed - _flags()
    if not lacking:
        return None
    limit = os.environ.get("MIS_MAX_ISA")
    return f"needs a CPU with {', '.join(sorted(lacking))}" + (f" (MIS_MAX_ISA={limit})" if limit else "")


@cache
def _flags() -> set[str]:
    """Return what the CPU and the library can do together, in Linux's words, up to what `MIS_MAX_ISA` allows.

    Raises:
        ValueError: `MIS_MAX_ISA` is none of `LEVELS`.
    """
    flags, limit = _cpu_flags() | _emulated(), os.environ.get("MIS_MAX_ISA")
    if not limit:
        return flags
    if limit not in LEVELS:
        raise ValueError(f"MIS_MAX_ISA: {limit!r} is not one of {', '.join(LEVELS)}")
    names = list(LEVELS)
    return flags.difference(*(LEVELS[name] for name in names[names.index(limit) + 1 :]))


def _machine() -> str:
    """Return the kind of machine in Linux's words; one that the library is not written for counts as x86-64."""
    machine = platform.machine()
    return machine if machine in _INT8 else "x86_64"


def _cpu_flags(file: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return what Linux says the CPU can do; nothing elsewhere."""
    lines = file.read_text().splitlines() if file.exists() else []
    return next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set())


def _emulated() -> set[str]:
    """Return what a library that was named brings itself (`native/emulated/single.cc`)."""
    if _named() is None or _load() is not None:
        return set()
    emulated = getattr(ctypes.CDLL(str(path())), "mis_emulated", None)
    if emulated is None:
        return set()
    emulated.restype = ctypes.c_char_p
    return set(emulated().decode().split())
