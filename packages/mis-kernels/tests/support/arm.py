"""The native library for aarch64 on an x86-64 machine: another compiler makes it, and an emulator of that CPU runs it.

What it must compute is what ordinary tests of native paths compute here, with the library in which C++ stands in for
vectors and adds products in bfloat16 as aarch64 does. Their calls are recorded, and repeated there.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import pytest

from emulation import KERNELS, OF_ARM, build_hook, compiled
from mis_kernels.backends.native.library import FUNCTIONS

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
MISSING = [program for program in (COMPILER, EMULATOR) if shutil.which(program) is None]
NEEDS_ARM = pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}")
EMULATED_CPU = ("-cpu", "max", "-L", "/usr/aarch64-linux-gnu")
RECORDED = KERNELS / "native" / "recorded"


def compile_for_arm(output: Path) -> None:
    """Compile the library as the build hook does on Linux's aarch64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", COMPILER)
        patch.setattr(platform, "machine", lambda: "aarch64")
        assert build_hook().compile_library(KERNELS, output) is None


def record(calls: Path, command: Sequence[str]) -> None:
    """Run Python with these arguments, and write the calls of the library to a folder."""
    recorder = calls.with_name("recorder.so")
    if not recorder.exists():
        functions = " ".join(f"MIS_FUNCTION({name})" for name in FUNCTIONS)
        _compile("c++", "record.cc", recorder, "-fPIC", "-shared", f"-DMIS_FUNCTIONS={functions}")
    variables = {"MIS_NATIVE_LIBRARY": recorder, "MIS_RECORDED_LIBRARY": compiled(OF_ARM), "MIS_RECORDED_CALLS": calls}
    search = {"PYTHONPATH": os.pathsep.join(sys.path), "MIS_MAX_ISA": "AVX512_BF16"}
    env = {**os.environ, **search, **{name: str(path) for name, path in variables.items()}}
    command = [sys.executable, *command]
    done = subprocess.run(command, cwd=KERNELS.parents[1], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


def repeat(library: Path, calls: Sequence[Path]) -> tuple[dict[str, int], list[str]]:
    """Repeat calls on an emulated aarch64; return how many there were of each function, and which had other bits."""
    program = library.with_name("repeat")
    if not program.exists():
        _compile(COMPILER, "repeat.cc", program, "-pthread")
    command = [EMULATOR, *EMULATED_CPU, str(program), str(library), *map(str, calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    counts = {name: int(count) for name, _, count in (line.partition(" ") for line in lines) if name in FUNCTIONS}
    others = [line for line in lines if line.partition(" ")[0] not in FUNCTIONS]
    assert done.returncode == bool(others), done.stdout + done.stderr
    return counts, others


def _compile(compiler: str, source: str, output: Path, *flags: str) -> None:
    flags = "-std=c++17", "-O2", "-Wall", f"-isystem{jax.ffi.include_dir()}", *flags
    subprocess.run([compiler, *flags, str(RECORDED / source), "-o", str(output)], check=True)
