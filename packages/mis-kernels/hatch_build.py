"""Compiles the native attention kernel into the wheel, where there is a compiler for this kind of machine."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Products and sums are fused where the source says so and nowhere else, whatever the compiler would like.
COMMON = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-ffp-contract=off",
)
NATIVE = {
    "x86_64": (
        *("-O3", "-mamx-tile", "-mamx-bf16", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"),
        *("-mavx512vnni", "-mamx-int8", "-mfma"),
    ),
    "aarch64": ("-O3", "-march=armv8.2-a+bf16+i8mm"),
}
"""For each kind of machine that the library is written for, the instructions that it has."""
WITHOUT_AVX512 = ("-O2", "-march=native", "-Wno-psabi")
LIBRARY = Path("src/mis_kernels/lib/native.so")
AVX2 = ("-O3", "-mavx2", "-mfma")
LIBRARY_FOR_AVX2 = LIBRARY.with_name("native_avx2.so")
"""What float32 needs, for x86-64 without AVX-512: a library of its own, since no line of it may use more."""


def compile_library(
    root: Path, output: Path | None = None, emulated: Sequence[str] | None = None, sources: Sequence[Path] = ()
) -> str | None:
    """Compile the library, and on x86-64 that for AVX2; return why that is impossible here, or None.

    Args:
        root: The folder of this file.
        output: Where the library goes, by itself; None: libraries go where the package looks for them.
        emulated: For tests on x86-64: which of `AMX` and `AVX512` plain C++ stands in for; `ARM` with both: products in
            bfloat16 are added as aarch64 does. The library then also has what tests ask it for (`native/emulated`);
            None: it does not.
        sources: Files to compile; none: all of them.

    Raises:
        subprocess.CalledProcessError: the compiler refuses the source.
    """
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in (NATIVE if emulated is None else ["x86_64"]):
        which = "x86_64 and aarch64" if emulated is None else "x86_64, where it emulates other CPUs"
        return f"it is written for Linux on {which}, and this is {system} on {machine}"
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    compiler = next((found for name in names if name and (found := shutil.which(name))), None)
    if compiler is None:
        return "no C++ compiler was found (set CXX, or install g++ 11 or clang 12)"
    import jax

    folders = [root / "native"] if emulated is None else [root / "native", root / "native" / "emulated"]
    sources = sources or [file for folder in folders for file in sorted(folder.glob("*.cc"))]
    flags = [*COMMON, *(WITHOUT_AVX512 if "AVX512" in (emulated or ()) else NATIVE[machine])]
    flags += [f"-DMIS_EMULATED_{name}" for name in emulated or ()]
    made = [(output or root / LIBRARY, flags, sources)]
    if output is None and machine == "x86_64":
        made.append((root / LIBRARY_FOR_AVX2, [*COMMON, *AVX2], sorted((root / "native").glob("float32_*.cc"))))
    includes = (f"-I{root / 'native'}", f"-isystem{jax.ffi.include_dir()}")
    for library, flags, sources in made:
        library.parent.mkdir(exist_ok=True)
        subprocess.run([compiler, *flags, *includes, *map(str, sources), "-o", str(library)], check=True)
    return None


class NativeKernel(BuildHookInterface):
    """Adds the library to the wheel and marks the wheel as this platform's; says of which commit the package is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; without a compiler the wheel is pure and attention runs on XLA."""
        unknown = _beside("hatch_commit").add_commit(Path(self.root), self.target_name, version, build_data)
        if unknown is not None:
            self.app.display_warning(f"The commit of this package is unknown: {unknown}.")
        if self.target_name != "wheel":
            return
        reason = compile_library(Path(self.root))
        if reason is not None:
            self.app.display_warning(f"The native CPU attention kernel is left out: {reason}.")
            return
        build_data["artifacts"].append(str(LIBRARY.parent / "*.so"))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        _beside("hatch_commit").clear(build_data)


def _beside(name: str) -> Any:
    """Return the module of a file beside this one, which hatch loads by its path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "it is a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _platform_tag() -> str:
    from packaging.tags import platform_tags

    return next(iter(platform_tags()))


if __name__ == "__main__":
    sys.exit(compile_library(Path(__file__).parent))
