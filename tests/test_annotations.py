"""Arrays in signatures are checked in tests, wherever there are any."""

import re
import tomllib
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

from mis_core.ragged import offsets

ROOT = Path(__file__).parents[1]


def checked_modules() -> tuple[str, ...]:
    """What pytest is told to check, but for the checker."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["addopts"]
    (names,) = (option.partition("=")[2] for option in options if option.startswith("--jaxtyping-packages="))
    return tuple(names.split(",")[:-1])


def annotated_modules() -> set[str]:
    found = set()
    for package in ("mis_kernels", "mis_core"):
        source = ROOT / "packages" / package.replace("_", "-") / "src"
        for file in source.rglob("*.py"):
            if re.search(r"^from jaxtyping import", file.read_text(), re.MULTILINE):
                found.add(".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__"))
    return found


def test_every_module_with_arrays_in_signatures_is_checked() -> None:
    annotated = annotated_modules()
    assert len(annotated) > 20
    for name in annotated:
        assert any(f"{name}.".startswith(f"{checked}.") for checked in checked_modules()), f"add {name} to addopts"


def test_every_checked_module_has_arrays_in_signatures() -> None:
    for checked in checked_modules():
        assert any(f"{name}.".startswith(f"{checked}.") for name in annotated_modules()), f"{checked} has none"


def test_an_array_of_another_type_is_noticed() -> None:
    assert offsets(np.array([2, 3])).tolist() == [0, 2, 5]
    with pytest.raises(jaxtyping.TypeCheckError):
        offsets(np.array([2.0, 3.0]))
