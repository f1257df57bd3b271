"""Several devices compute what one does: KV heads cut, copied and padded, and tokens cut."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mis_kernels.sharding import cache_heads

PROGRAM = Path(__file__).parent / "support" / "sharded_attention.py"


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    flags = "--xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_division_of_heads_and_tokens_equals_one_device(differences: dict[str, float]) -> None:
    assert len(differences) == 5 * 2 + 2
    assert {name: d for name, d in differences.items() if not d < 1e-5} == {}


def test_heads_that_cannot_be_divided_are_refused() -> None:
    assert [cache_heads(8, 4), cache_heads(2, 8), cache_heads(1, 1)] == [8, 8, 1]
    with pytest.raises(ValueError, match="3 KV heads cannot be divided among 2 devices"):
        cache_heads(3, 2)
