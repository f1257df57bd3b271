"""The TPU kernel under the emulator that follows every copy and semaphore."""

import pytest
from jax.experimental.pallas import tpu as pltpu

from mis_kernels.backends.tpu.tiles import TpuBlocks
from tpu_cases import Case, check, items

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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_races_and_nothing_uninitialised(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    check(case, pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"))
    assert "RACE DETECTED" not in capsys.readouterr().out
