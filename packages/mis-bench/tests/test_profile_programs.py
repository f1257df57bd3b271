"""Which program an operation of a CPU belongs to, whatever its number says, and how much its call reads."""

from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mis_bench.profile.programs import TracedInstruction, TracedProgram, instructions_of
from mis_bench.profile.traffic import bytes_read
from mis_kernels.backends.native import int8, packed
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.weights import Weight

NORM, DOWN = (
    TracedInstruction("fusion", "jit(step)/layers/mlp/norm/mul"),
    TracedInstruction("fusion", "jit(step)/layers/mlp/down/dot"),
)
SMALL = TracedProgram("jit_step", {"fusion.1": NORM, "fusion.2": DOWN})
LARGE = TracedProgram("jit_step", {"fusion.1": NORM, "fusion.2": NORM, "fusion.3": DOWN})
OTHER = TracedProgram("jit_draw", {"fusion.1": DOWN})


def test_numbers_count_where_all_are_right() -> None:
    runs = {("jit_step", 1): {"fusion.1", "fusion.2"}, ("jit_draw", 3): {"fusion.1"}}
    found = instructions_of(runs, {1: SMALL, 2: LARGE, 3: OTHER})
    assert found == {("jit_step", 1): SMALL.instructions, ("jit_draw", 3): OTHER.instructions}


def test_a_step_compiled_by_another_process_is_found_by_what_ran() -> None:
    runs = {("jit_step", 9): {"fusion.1", "fusion.2", "fusion.3"}}
    assert instructions_of(runs, {1: SMALL, 2: LARGE})["jit_step", 9] == LARGE.instructions


def test_its_number_may_be_anothers() -> None:
    """Number 3 is a step here, and was another program where that one was compiled."""
    runs = {("jit_draw", 3): {"fusion.1"}, ("jit_step", 4): {"fusion.3"}}
    found = instructions_of(runs, {3: LARGE, 4: OTHER})
    assert found == {("jit_draw", 3): OTHER.instructions, ("jit_step", 4): LARGE.instructions}


def test_steps_that_cannot_be_told_apart_have_what_they_agree_on() -> None:
    runs = {("jit_step", 1): {"fusion.1", "fusion.2"}, ("jit_draw", 9): {"fusion.1"}}
    found = instructions_of(runs, {1: SMALL, 2: LARGE, 3: OTHER})
    assert found["jit_step", 1] == {"fusion.1": NORM, "fusion.3": DOWN}


def test_sizes_count_only_where_steps_agree_on_them() -> None:
    norm = NORM._replace(bytes=8, bytes_read=4)
    one, other = (
        TracedProgram("jit_step", {"fusion.1": norm, "fusion.2": DOWN._replace(bytes=size)}) for size in (16, 32)
    )
    found = instructions_of({("jit_step", 9): {"fusion.1", "fusion.2"}}, {1: one, 2: other})["jit_step", 9]
    assert found == {"fusion.1": norm, "fusion.2": DOWN}


def test_what_no_program_has_is_unknown() -> None:
    runs = {("jit_step", 1): {"fusion.9"}, ("jit_gone", 7): {"fusion.1"}}
    assert instructions_of(runs, {2: SMALL}) == {("jit_step", 1): {}, ("jit_gone", 7): {}}


ROWS, DEPTH, COLUMNS = 4, 64, 32
TYPES = {"int8": 2, "int32": 4, "uint8": 6, "float32": 11}
"""Numbers of types in `xla_data.proto`."""


def packed_in_float32(layers: int) -> packed.PackedWeight:
    return packed.PackedWeight(packed.pack(np.ones((layers, DEPTH, COLUMNS), np.float32)))


def tiled_in_int8(layers: int) -> int8.TiledWeight:
    values, scales = np.ones((layers, DEPTH, COLUMNS), np.int8), np.ones((layers, COLUMNS), np.float32)
    return int8.tile(QuantizedWeight(values, scales, block=1), DEPTH)


@pytest.mark.parametrize(
    ("stack", "call", "expected"),
    [
        (packed_in_float32, "mis_float32_packed_linear", 4 * (ROWS * DEPTH + DEPTH * COLUMNS) + 4),
        (tiled_in_int8, "mis_int8_product", 4 * ROWS * DEPTH + (DEPTH + 4) * COLUMNS + 4),
    ],
)
@pytest.mark.parametrize("layers", [1, 3])
def test_a_product_reads_one_layer_of_its_stack(
    stack: Callable[[int], Weight], call: str, expected: int, layers: int
) -> None:
    weight = jax.tree.map(jnp.asarray, stack(layers))
    traced = jax.make_jaxpr(lambda x: weight.at_layer(jnp.int32(0)).linear(x))(jnp.ones((ROWS, DEPTH)))
    (operands,) = [each.invars for each in traced.eqns if each.params.get("target_name") == call]
    shapes = [SimpleNamespace(element_type=TYPES[each.aval.dtype.name], dimensions=each.aval.shape, tuple_shapes=())
              for each in operands]  # fmt: skip
    assert bytes_read(call, shapes) == expected
