"""The build hook of mis-kernels: compiles where it can, and says why where it cannot."""

import importlib.util
import platform
import sysconfig
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


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "riscv64"), ("Windows", "AMD64")])
def test_other_machines_have_no_native_library(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    reason = hook.compile_library(tmp_path)
    assert reason == f"it is written for Linux on x86_64 and aarch64, and this is {system} on {machine}"


@pytest.mark.parametrize(("machine", "has"), [("x86_64", "-mavx512bf16"), ("aarch64", "-march=armv8.2-a+bf16+i8mm")])
def test_a_compiler_gets_the_instructions_of_its_machine(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, has: str
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("CXX", str(compiler))
    (tmp_path / "src" / "mis_kernels").mkdir(parents=True)
    assert hook.compile_library(tmp_path) is None
    arguments = (tmp_path / "arguments").read_text().split()
    assert [flags[-1] in arguments for flags in hook.NATIVE.values()] == [name == machine for name in hook.NATIVE]
    assert has in arguments


def test_other_cpus_are_emulated_on_x86_64_alone(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    reason = hook.compile_library(KERNELS, emulated=("AVX512",))
    assert reason == "it is written for Linux on x86_64, where it emulates other CPUs, and this is Linux on aarch64"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_wheel_is_tagged_for_the_machine(hook: ModuleType, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(sysconfig, "get_platform", lambda: f"linux-{machine}")
    tag = hook._platform_tag()
    assert tag.endswith(f"_{machine}")
    assert "linux" in tag


def test_a_wheel_has_the_library_if_there_is_a_compiler(hook: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    for name in ("empty.cc", "float32_empty.cc"):
        (tmp_path / "native" / name).write_text(f"int {name[:-3]}() {{ return 0; }}\n")
    (tmp_path / hook.LIBRARY).parent.parent.mkdir(parents=True)
    reason = hook.compile_library(tmp_path)
    assert (tmp_path / hook.LIBRARY).exists() == (reason is None)
    on_x86_64 = reason is None and platform.machine() == "x86_64"
    assert (tmp_path / hook.LIBRARY_FOR_AVX2).exists() == on_x86_64
