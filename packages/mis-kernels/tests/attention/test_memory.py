"""A step's attention takes memory for its tokens, and none for each pair of them."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from kernel_cases import Case, Segment
from mis_kernels import segment_attention


def temporary_bytes(backend: str, tokens: int) -> int:
    """Return the temporary memory of attention from a query's tokens to themselves and to a cached beginning."""
    case = Case([Segment(tokens, paged=True)], contexts=(256,), tokens=tokens)
    arrays = case.arrays(jnp.float32)
    described = {name: arrays.pop(name) for name in ("segments", "scale")} | {"backend": backend}
    del arrays["backend"]
    memory = jax.jit(partial(segment_attention, **described)).lower(**arrays).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.parametrize(("backend", "grows"), [("xla", False), ("reference", True)])
def test_memory_grows_with_tokens_and_not_with_their_square(backend: str, grows: bool) -> None:
    """Four times the tokens have sixteen times the pairs, which the reference keeps and nothing else does."""
    small, large = (temporary_bytes(backend, tokens) for tokens in (512, 2048))
    assert (large > 5 * small) == grows
