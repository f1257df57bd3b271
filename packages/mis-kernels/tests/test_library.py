"""What the native library may use: the CPU's instructions, up to a limit that the environment sets."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from emulation import environment
from mis_kernels.backends.native import library

SAPPHIRE_RAPIDS = {*set().union(*library.LEVELS.values()) - {"amx_fp16"}, "fma", "sse2"}
REPORT = """
import json
from mis_kernels.backends import ANY_HEADS, explain
from mis_kernels.backends.native import library
found = library.why_not(), library.why_not_int8(), library.has_tiles(), library.has_int8_tiles()
print(json.dumps([*found, explain(ANY_HEADS, "bfloat16").split("; ")[0]]))
"""


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests run within a limit, too."""
    for name in ("MIS_MAX_ISA", "MIS_NATIVE_LIBRARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("limit", "taken"),
    [
        ("SSE4_2", {"avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile"}),
        ("AVX2", {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "amx_tile"}),
        ("AVX512", {"avx512_vnni", "avx512_bf16", "amx_tile"}),
        ("AVX512_VNNI", {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}),
        ("AVX512_BF16", {"amx_tile", "amx_bf16", "amx_int8"}),
        ("AMX", set()),
        ("", set()),
    ],
)
def test_a_limit_takes_away_what_is_above_it(limit: str, taken: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_cpu_flags", lambda: SAPPHIRE_RAPIDS)
    monkeypatch.setenv("MIS_MAX_ISA", limit)
    left = library._flags.__wrapped__()
    assert taken.isdisjoint(left)
    assert {"fma", "sse2", "sse4_2"} <= left
    assert ("avx512_bf16" in left) == (limit in {"AVX512_BF16", "AMX", ""})
    monkeypatch.setattr(library, "_flags", lambda: left)
    assert library.level() == (limit or "AMX")


def test_a_limit_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_cpu_flags", lambda: {"sse4_2", "avx"})
    monkeypatch.setenv("MIS_MAX_ISA", "AMX")
    assert library._flags.__wrapped__() == {"sse4_2", "avx"}
    monkeypatch.setattr(library, "_flags", lambda: {"sse4_2", "avx"})
    assert library.level() == "AVX"
    monkeypatch.setattr(library, "_flags", set)  # of another architecture
    assert library.level() is None


def test_an_unknown_limit_is_refused_with_all_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIS_MAX_ISA", "avx3")
    with pytest.raises(ValueError, match=r"MIS_MAX_ISA: 'avx3' is not one of SSE4_2, AVX, AVX2, AVX512, AVX512_VNNI, "):
        library._flags.__wrapped__()


def test_a_configured_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIS_NATIVE_LIBRARY", "/nowhere/native.so")
    assert library._load.__wrapped__() == "needs /nowhere/native.so"


def test_a_broken_library_is_named_and_an_empty_name_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "native.so"
    file.write_bytes(b"none")
    monkeypatch.setenv("MIS_NATIVE_LIBRARY", str(file))
    assert f"needs a native library that can be loaded: {file}: " in str(library._load.__wrapped__())
    monkeypatch.setenv("MIS_NATIVE_LIBRARY", "")
    assert library.path().name == "native.so" != file
    assert library._emulated() == set()


@pytest.mark.parametrize(
    ("features", "lacking", "lacking_int8"),
    [
        ("asimd atomics i8mm bf16", None, None),
        ("asimd atomics i8mm", "needs a CPU with bf16", None),
        ("asimd atomics", "needs a CPU with bf16, i8mm", "needs a CPU with i8mm"),
    ],
)
def test_what_an_arm_cpu_has(
    features: str, lacking: str | None, lacking_int8: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: {features}\nCPU part\t: 0xd40\n")
    found = library._cpu_flags(file)
    assert set(features.split()) <= found
    monkeypatch.setattr(library, "_flags", lambda: found)
    monkeypatch.setattr(library, "_load", lambda: None)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert (library.why_not.__wrapped__(), library.why_not_int8.__wrapped__()) == (lacking, lacking_int8)
    assert not library.has_tiles.__wrapped__()
    assert not library.has_int8_tiles()


@pytest.mark.parametrize(
    ("limit", "lacking", "lacking_int8", "tiles", "chosen"),
    [
        ("AMX", None, None, True, "native"),
        ("AVX512_VNNI", "avx512_bf16", None, False, "xla"),
    ],
)
def test_what_a_process_has_within_a_limit(
    limit: str, lacking: str | None, lacking_int8: str | None, tiles: bool, chosen: str
) -> None:
    """Of a CPU that has all: the library brings what this one lacks."""
    env = {**os.environ, **environment(limit)}
    done = subprocess.run([sys.executable, "-c", REPORT], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reasons = [each and f"needs a CPU with {each} (MIS_MAX_ISA={limit})" for each in (lacking, lacking_int8)]
    assert json.loads(done.stdout) == [*reasons, tiles, tiles, chosen]
