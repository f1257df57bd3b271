"""What computes on which device: one folder per backend, and here the list of them, the choice, and its reasons."""

from collections.abc import Iterator

from mis_kernels.backends.gpu import backend as gpu
from mis_kernels.backends.laid_out import LaidOut, StepLimits, stacked
from mis_kernels.backends.native import backend as native
from mis_kernels.backends.protocol import Backend
from mis_kernels.backends.reference import backend as reference
from mis_kernels.backends.reference import dense
from mis_kernels.backends.tpu import backend as tpu
from mis_kernels.backends.xla import backend as xla
from mis_kernels.heads import HeadShape

__all__ = [
    "ANY_HEADS", "REGISTRY", "Backend", "LaidOut", "StepLimits", "choose", "explain", "fastest_dtype", "stacked",
]  # fmt: skip

REGISTRY: list[type[Backend]] = [
    *tpu.BACKENDS,
    *gpu.BACKENDS,
    *native.BACKENDS,
    *xla.BACKENDS,
    *dense.BACKENDS,
    *reference.BACKENDS,
]
"""All backends, the fastest first."""

ANY_HEADS = HeadShape(1, 1, 128)
"""Heads that every backend takes, where no model is at hand."""


def choose(heads: HeadShape, dtype: str, name: str | None = None) -> Backend:
    """Return the first backend that fits a model on what code is made for here.

    Args:
        heads: Heads of one device.
        dtype: Type of weights and activations.
        name: Of the backend; default: any.

    Raises:
        ValueError: there is none of that name, or it does not fit; says why.
    """
    kinds = [kind for kind in REGISTRY if name in (None, kind.name)]
    if not kinds:
        raise ValueError(f"backend: {name!r} is unknown; choose from {', '.join({kind.name: 0 for kind in REGISTRY})}")
    for kind in kinds:
        if kind.misfit(heads, dtype) is None:
            return kind.create(heads, dtype)
    raise ValueError(f"backend: {'; '.join(_misfits(kinds, heads, dtype))}")


def explain(heads: HeadShape, dtype: str) -> str:
    """Return the name of what `choose` chooses, and why those that are faster do not fit, for people."""
    chosen = choose(heads, dtype)
    faster = [kind for kind in REGISTRY[: REGISTRY.index(type(chosen))] if kind.name != chosen.name]
    return "; ".join([chosen.name, *_misfits(faster, heads, dtype)])


def fastest_dtype() -> tuple[str, str]:
    """Return the type that products take least time in here, and what computes it, for people."""
    return choose(ANY_HEADS, "bfloat16").fastest_dtype, f"computed by {explain(ANY_HEADS, 'bfloat16')}"


def _misfits(kinds: list[type[Backend]], heads: HeadShape, dtype: str) -> Iterator[str]:
    return (f"{kind.name} {reason}" for kind in kinds if (reason := kind.misfit(heads, dtype)))
