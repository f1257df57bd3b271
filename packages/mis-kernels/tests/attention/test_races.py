"""The TPU kernel under the emulator that follows every copy and semaphore."""

import pytest
from jax.experimental.pallas import tpu as pltpu

from mis_kernels.backends.tpu.tiles import TpuBlocks
from tpu_cases import Case, arrays, assert_agrees, attend, check, items, lay_out_case

TINY = TpuBlocks(tokens=128, keys=128, strip=128, key_step=128)
CASES = [
    Case(
        "items over whole, contiguous and scattered pages",
        items(0, 300, 20, 33, 40, 20),
        tokens=256,
        group=1,
        blocks=TINY,
        shuffle=True,
    ),
    Case("query and its items", ((0, 0, 128, True), *items(0, 128, 20, 30, 1)), group=1, head_dim=64, blocks=TINY),
    Case(
        "several contexts",
        (*items(0, 200, 40), *items(1, 70, 30), *items(2, 0, 25)),
        tokens=128,
        group=2,
        dtype="bfloat16",
        blocks=TINY,
    ),
    Case("nothing but padding", (), tokens=128, blocks=TINY),
]


EMULATED = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_races_and_nothing_uninitialised(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    check(case, EMULATED)
    assert "RACE DETECTED" not in capsys.readouterr().out


def test_no_races_where_blocks_are_computed_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """Their tiles are fetched once more, beside those that are on their way for the next block."""
    case = CASES[0]
    segments, pages = lay_out_case(case)
    q, *others = arrays(case, pages, segments)
    peaked = (q * 30, *others)
    assert_agrees(attend(peaked, segments, case.scale, EMULATED), peaked, segments, case.scale)
    assert "RACE DETECTED" not in capsys.readouterr().out
