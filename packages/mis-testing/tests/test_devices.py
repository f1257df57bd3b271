"""Processes with several CPU devices."""

from pathlib import Path

import pytest

from mis_testing.devices import environment_with_devices

ROOT = Path(__file__).parents[3]


def test_what_xla_is_told_already_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    flags = environment_with_devices(8)["XLA_FLAGS"]
    assert flags == "--xla_cpu_max_isa=AVX2 --xla_force_host_platform_device_count=8"
    monkeypatch.delenv("XLA_FLAGS")
    assert environment_with_devices(2)["XLA_FLAGS"] == "--xla_force_host_platform_device_count=2"


def test_no_test_writes_over_it() -> None:
    """A limit of `tests_lesser_cpu` must reach the processes that tests start."""
    option = "force_host_platform" + "_device_count"
    files = [*ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("cluster/**/*.py")]
    assert len(files) > 100
    assert [str(file) for file in files if option in file.read_text() and file != Path(__file__)] == []
