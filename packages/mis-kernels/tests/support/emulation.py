"""The native library as tests compile it: what a CPU lacks is emulated, and instructions of tiles are counted."""

import ctypes
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from mis_kernels.backends.native import library

KERNELS = Path(__file__).parents[2]
HOOK = KERNELS / "hatch_build.py"
NEEDED = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"}
CPU = library._cpu_flags()  # whatever MIS_MAX_ISA allows
EVERYTHING = ("AMX", "AVX512")
OF_ARM = (*EVERYTHING, "ARM")
WHAT_IS_LACKING = ("AMX",) if NEEDED <= CPU else EVERYTHING
"""What is emulated to run the paths of AMX here: no more than must be, but tiles always, since the CPU counts none."""

COUNTED = ("configured", "zeroed", "loaded", "stored", "multiplied_bfloat16", "multiplied_int8", "rows")


SINGLE = (KERNELS / "native" / "emulated" / "single.cc", KERNELS / "native" / "tile_registers.cc")
"""Single instructions."""

OURS = "packages/mis-kernels/tests"
ALL = (OURS, "-k", "native or packed or int8 or logits or few_rows", "packages/mis-core/tests/runner/test_few_rows.py")
"""Arguments that have pytest run the tests of native paths."""


def build_hook() -> ModuleType:
    """Load what compiles the library."""
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def compiled(emulated: tuple[str, ...], sources: tuple[Path, ...] = ()) -> Path:
    """Return the file of a library with these instructions emulated; it is compiled once for all processes.

    Args:
        emulated: `AMX`, `AVX512`, `ARM`.
        sources: Files to compile; none: all of them.
    """
    files = sorted(file for file in (KERNELS / "native").rglob("*") if file.suffix in {".cc", ".h"})
    digest = hashlib.blake2b(" ".join([*emulated, *map(str, sources), *sorted(CPU)]).encode(), digest_size=8)
    for file in (HOOK, *files):
        digest.update(file.read_bytes())
    name = "-".join(["single" if sources else "native", "emulates", *emulated])
    folder = KERNELS / ".cache"  # not in src, from where it would get into wheels
    output = folder / f"{name}-{digest.hexdigest()}.so"
    folder.mkdir(exist_ok=True)
    with FileLock(output.with_suffix(".lock")):
        if not output.exists():
            partial = output.with_suffix(".partial")
            reason = build_hook().compile_library(KERNELS, partial, emulated, sources)
            if reason is not None:
                pytest.skip(f"needs a C++ compiler for x86-64 Linux: {reason}")
            partial.rename(output)
    return output


def environment(largest: str) -> Mapping[str, str]:
    """Return the variables that let a process have instructions up to this set, emulated where they must be."""
    return {"MIS_NATIVE_LIBRARY": str(compiled(WHAT_IS_LACKING)), "MIS_MAX_ISA": largest}


def take_counts() -> dict[str, int]:
    """Return how often this process executed each instruction of tiles since the last call."""
    counts = np.zeros(len(COUNTED), np.int64)
    ctypes.CDLL(str(library.path())).mis_take_tile_counts(counts.ctypes.data_as(ctypes.c_void_p))
    return dict(zip(COUNTED, counts.tolist(), strict=True))


def counted_by(program: Path, *arguments: str) -> Any:
    """Return the JSON that a program prints last, run where tiles are emulated and this process's modules are found."""
    env = {**os.environ, **environment("AMX"), "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
