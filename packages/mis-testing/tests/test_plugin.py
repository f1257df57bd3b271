"""The plugin: markers known, fixtures shared, nothing imported early."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mis_testing.plugin import MARKERS


def test_markers_are_registered(pytestconfig: pytest.Config) -> None:
    registered = {line.split(":")[0] for line in pytestconfig.getini("markers")}
    assert set(MARKERS) <= registered


def test_equal_arguments_share_a_checkpoint(checkpoint_factory: Callable[..., Path], checkpoint: Path) -> None:
    assert checkpoint_factory() == checkpoint
    assert checkpoint_factory(seed=5) != checkpoint
    assert (checkpoint / "config.json").is_file()


def test_equal_arguments_share_an_oracle(checkpoint: Path, oracle_factory: Callable) -> None:
    assert oracle_factory(checkpoint) is oracle_factory(checkpoint)
    assert oracle_factory(checkpoint) is not oracle_factory(checkpoint, "bfloat16")


def test_loading_the_plugin_imports_no_checked_package() -> None:
    code = (
        "import sys, mis_testing.plugin; print(sorted({'mis_core', 'mis_kernels', 'jax', 'torch'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
