"""What code is made for: this process's devices, or a chip that it only compiles for or emulates."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax
from jax.experimental.pallas import tpu as pltpu

DEVICE_KINDS = {"TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "v7x"}
"""TPU chips by the name that JAX gives their devices."""

CUDA_CAPABILITIES = {"h100": 9.0, "l4": 8.9}
"""GPUs that code can be made for without one, and their compute capability."""


class CompilationTarget(NamedTuple):
    """What code is made for.

    Attributes:
        chip: `v5e`, `v6e` or `v7x`, or `h100` or `l4`; None: this process's devices.
        interpret: Whether Pallas emulates kernels on another platform, or, for TPUs, how.
        bounds_checks: Whether the attention kernel checks its addresses, which costs a tenth of a tile. The other
            kernels always do.
    """

    chip: str | None = None
    interpret: bool | pltpu.InterpretParams = False
    bounds_checks: bool = False


_HERE = CompilationTarget()
_target: ContextVar[CompilationTarget] = ContextVar("target", default=_HERE)


@contextmanager
def compiling_for(
    chip: str | None = None, *, interpret: bool | pltpu.InterpretParams = False, bounds_checks: bool = False
) -> Iterator[None]:
    """Within the block, make code for a target; a chip decides implementations, block sizes and storage.

    Programs are made when they are traced. An engine made in the block stays with its target.
    """
    token = _target.set(CompilationTarget(chip, interpret, bounds_checks))
    try:
        yield
    finally:
        _target.reset(token)


def target() -> CompilationTarget:
    """Return what code is made for here."""
    return _target.get()


def platform() -> str:
    """Return `cpu`, `gpu` or `tpu`."""
    chip = target().chip
    if chip is None:
        return jax.default_backend()
    return "gpu" if chip in CUDA_CAPABILITIES else "tpu"


def tpu_chip() -> str | None:
    """Return `v5e`, `v6e` or `v7x`; None on other platforms.

    Raises:
        ValueError: the device is a TPU that the tables of block sizes do not know.
    """
    if platform() != "tpu":
        return None
    if chip := target().chip:
        return chip
    kind = jax.devices()[0].device_kind
    if kind not in DEVICE_KINDS:
        raise ValueError(f"no block sizes for the TPU {kind!r}; known: {', '.join(DEVICE_KINDS)}")
    return DEVICE_KINDS[kind]


def cuda_capability() -> float | None:
    """Return the compute capability of the GPU that code is made for; None where it is not NVIDIA's."""
    if platform() != "gpu":
        return None
    if chip := target().chip:
        return CUDA_CAPABILITIES[chip]
    if "cuda" not in jax.devices()[0].client.platform_version:
        return None
    return float(jax.devices()[0].compute_capability)
