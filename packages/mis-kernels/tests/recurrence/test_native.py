"""What only native code for recurrent layers has to keep: bits on any number of threads, and of emulated vectors.

Parity and the origin of states are tested on every backend, in the files beside this one.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emulation import CPU, EVERYTHING, NEEDED, compiled
from kernel_cases import NEEDS_NATIVE
from mis_kernels import CARRIED, EMPTY, NOWHERE, RecurrentShape, gated_delta
from recurrent_cases import SHAPE, computed, kernel_of, listed, rows_of, segment, states_of

pytestmark = NEEDS_NATIVE

SUPPORT = Path(__file__).parents[1] / "support"
NEEDS_AVX512 = pytest.mark.skipif(not CPU >= NEEDED, reason="needs a CPU with AVX-512 in bfloat16, to compare with")


@pytest.mark.parametrize(("shape", "is_native"), [(SHAPE, True), (SHAPE._replace(value_dim=24), False)])
def test_heads_of_whole_vectors_are_computed_natively(shape: RecurrentShape, is_native: bool) -> None:
    inputs, decay, rate = map(jnp.asarray, rows_of(64, shape))
    apply = jax.jit(partial(gated_delta, shape=shape, backend="native"))
    arguments = inputs.astype(jnp.bfloat16), decay, rate, kernel_of(shape), states_of(shape), listed([])
    assert ("mis_gated_delta" in apply.lower(*arguments).as_text()) == is_native


def test_bits_do_not_depend_on_threads() -> None:
    found = {_digest({"NPROC": str(threads)}) for threads in (1, 7)}  # of XLA's pool
    assert len(found) == 1


@pytest.mark.full
@NEEDS_AVX512
@pytest.mark.skipif("MIS_MAX_ISA" in os.environ, reason="needs a CPU without a limit: sets its own")
def test_emulated_vectors_have_the_bits_of_the_cpus() -> None:
    emulated = {"MIS_NATIVE_LIBRARY": str(compiled(EVERYTHING)), "MIS_MAX_ISA": "AVX512_BF16"}
    assert _digest(emulated) == _digest({})


def _digest(variables: Mapping[str, str]) -> str:
    path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _print_digest() -> None:
    """Print a digest of a step: chains and forks, decays that lose everything, large numbers."""
    shape = RecurrentShape(8, 16, 32, 48, 4)
    rows = rows_of(400, shape, strongest=100)
    rows.inputs[::9] *= 30
    entries = [*segment(0, 150, EMPTY, 1), *segment(150, 20, 1), *segment(170, 1, 1), *segment(180, 200, 2, 3)]
    entries += [(380, 7, CARRIED, 3), (390, 5, 3, NOWHERE)]
    found, states = computed(rows, entries, backend="native", shape=shape)
    assert np.isfinite(found).all()
    digest = hashlib.sha256()
    for x in (found, *states):
        digest.update(x.tobytes())
    sys.stdout.write(digest.hexdigest())


if __name__ == "__main__":
    _print_digest()
