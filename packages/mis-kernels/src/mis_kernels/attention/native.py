"""Attention in C++ for x86-64 CPUs with AMX, called through JAX's foreign function interface.

XLA:CPU works through a loop of small operations and spends most of an attention's time between its two
products; the native kernel keeps a tile's logits in the first-level cache. It is compiled when the wheel is
built (see `native/`), and where there is no compiler or another CPU, the `xla` implementation stays.
"""

import ctypes
from functools import cache
from importlib import resources
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from mis_kernels.segments import Segments
from mis_kernels.storage import from_bits, to_bits
from mis_kernels.target import platform

LIBRARY = "_native.so"
_NAME = "mis_segment_attention"
_DIMENSION_STEP = 32  # numbers in a row of a tile register
_LARGEST_HEAD = 1024
_NEEDED = {"amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"}


def _cpu_flags() -> set[str]:
    """Return what Linux says the CPU can do; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


@cache
def _is_loaded() -> bool:
    """Load the library and register its function, if it is there and this CPU can run it."""
    path = resources.files("mis_kernels") / LIBRARY
    if not path.is_file():
        return False
    if not _cpu_flags().issuperset(_NEEDED):
        return False
    library = ctypes.CDLL(str(path))
    if library.mis_request_tile_registers():
        return False
    jax.ffi.register_ffi_target(_NAME, jax.ffi.pycapsule(library.mis_segment_attention), platform="cpu")
    return True


def is_available(dtype: DTypeLike, head_dim: int) -> bool:
    """Whether attention of this type and head width runs natively here.

    Args:
        dtype: Type of queries, keys and values; bfloat16 only.
        head_dim: Width of a head; multiples of 32.
    """
    fits = jnp.dtype(dtype) == jnp.bfloat16 and head_dim % _DIMENSION_STEP == 0 and head_dim <= _LARGEST_HEAD
    return fits and platform() == "cpu" and _is_loaded()


def native_attention(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    k_pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    v_pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    segments: Segments,
    *,
    scale: float,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend row by row. Arguments and result as in `segment_attention`; needs no tiles.

    Raises:
        ValueError: the library is missing, or type, head width or CPU are not supported.
    """
    if not is_available(q.dtype, q.shape[2]):
        raise ValueError(f"implementation: native is not available here for {q.dtype} heads of {q.shape[2]}")
    rows = (jnp.asarray(x) for x in (segments.context_id, segments.context_len, segments.segment_start))
    call = jax.ffi.ffi_call(_NAME, jax.ShapeDtypeStruct(q.shape, jnp.uint16))
    bits = (to_bits(x) for x in (q, k, v, k_pages, v_pages))
    return from_bits(call(*bits, *rows, jnp.asarray(segments.page_table), scale=np.float32(scale)))
