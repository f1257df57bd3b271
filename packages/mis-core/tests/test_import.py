"""`import mis_core` is light; its names are all there."""

import subprocess
import sys

import pytest

import mis_core

HEAVY = ("jax", "flax", "transformers", "mis_kernels", "scipy")


def heavy_modules_after(statement: str) -> str:
    code = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert heavy_modules_after("import mis_core") == ""


def test_asking_for_the_engine_loads_the_device_half() -> None:
    loaded = heavy_modules_after("from mis_core import Engine").split()
    assert {"jax", "flax", "mis_kernels"} <= set(loaded)
    assert "scipy" not in loaded


def test_every_public_name_is_there() -> None:
    assert {name for name in mis_core.__all__ if not hasattr(mis_core, name)} == set()
    assert set(mis_core.__all__) == set(dir(mis_core))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = mis_core.Motor
