"""Which platform code is made for: this process's devices, or a chip that it only compiles for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

DEVICE_KINDS = {"TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "v7x"}
"""TPU chips by the name that JAX gives their devices."""

_chip: ContextVar[str | None] = ContextVar("chip", default=None)


@contextmanager
def compiling_for(chip: str) -> Iterator[None]:
    """Within the block, choose implementations, block sizes and storage for a TPU chip, whatever devices there are."""
    token = _chip.set(chip)
    try:
        yield
    finally:
        _chip.reset(token)


def platform() -> str:
    """Return `cpu`, `gpu` or `tpu`."""
    return "tpu" if _chip.get() else jax.default_backend()


def tpu_chip() -> str | None:
    """Return `v5e`, `v6e` or `v7x`; None on other platforms.

    Raises:
        ValueError: the device is a TPU that the tables of block sizes do not know.
    """
    if platform() != "tpu":
        return None
    if chip := _chip.get():
        return chip
    kind = jax.devices()[0].device_kind
    if kind not in DEVICE_KINDS:
        raise ValueError(f"no block sizes for the TPU {kind!r}; known: {', '.join(DEVICE_KINDS)}")
    return DEVICE_KINDS[kind]
