"""Single instructions of a library, and operands for them: numbers of all sizes and of every kind."""

import ctypes

import numpy as np

SMALLEST = 2.0**-126  # of the normal numbers


def call(library: ctypes.CDLL, name: str, *arrays: np.ndarray) -> np.ndarray:
    """Have an instruction change its first operand; return that."""
    copies = [np.ascontiguousarray(array) for array in arrays]
    copies[0] = copies[0].copy()
    getattr(library, name)(*(array.ctypes.data_as(ctypes.c_void_p) for array in copies))
    return copies[0]


def numbers(shape: tuple[int, ...], dtype: type, seed: int) -> np.ndarray:
    """Bits of numbers of all sizes, every eighth of them zero, infinite, NaN or denormal."""
    random = np.random.default_rng(seed)
    drawn = random.standard_normal(shape) * 2.0 ** random.integers(-60, 40, shape)
    strange = random.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-39, -9e-39, SMALLEST, 3e38], shape)
    with np.errstate(over="ignore"):
        return np.where(random.random(shape) < 1 / 8, strange, drawn).astype(dtype)


def flushed(x: np.ndarray) -> np.ndarray:
    """Return float32 with denormals as zeros of their sign."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x).astype(np.float32)
