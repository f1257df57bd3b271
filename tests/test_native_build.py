"""The build hook of mis-kernels: compiles where it can, and says why where it cannot."""

import importlib.util
import platform
from pathlib import Path
from types import ModuleType

import pytest

KERNELS = Path(__file__).parents[1] / "packages" / "mis-kernels"


@pytest.fixture
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", KERNELS / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_compiler_nothing_is_compiled(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler was found" in hook.compile_library(tmp_path)


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64"), ("Windows", "AMD64")])
def test_other_machines_have_no_native_library(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert f"{system} on {machine} has no AMX" in hook.compile_library(tmp_path)


def test_a_wheel_has_the_library_if_there_is_a_compiler(hook: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "empty.cc").write_text("int nothing() { return 0; }\n")
    (tmp_path / hook.LIBRARY).parent.parent.mkdir(parents=True)
    reason = hook.compile_library(tmp_path)
    assert (tmp_path / hook.LIBRARY).exists() == (reason is None)
