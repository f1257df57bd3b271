"""For every test of the workspace: tiers, one folder for what is compiled, no deadlines, skips that are looked at."""

import functools
import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic
from typing import TypeVar

import pytest
from _pytest.main import wrap_session
from hypothesis import settings

# A machine that is busy with something else must not fail a test: timings belong to benchmarks. Tests that do not say
# how many examples they draw have hypothesis' hundred in full runs, and few before.
settings.register_profile("workspace", deadline=None)
settings.register_profile("few", deadline=None, max_examples=25)

# JAX, PyTorch and all tests are a million objects that stay; looking through them at Python's pace takes a tenth of the
# time of tests that do not compile.
gc.set_threshold(20_000, 20, 20)

TIERS: dict[str, tuple[set[str], set[str]]] = {
    "quick": ({"quick"}, {"full"}),
    "cpu": (set(), {"full", "tpu_aot"}),
    "full": (set(), {"tpu_aot"}),
    "tpu": ({"tpu"}, set()),
    "gpu": ({"gpu"}, set()),
    "tpu_aot": ({"tpu_aot"}, set()),
}
"""Tests of a session `tests_*`, and of `tpu_aot`: they have the first marks, and none of the others."""

_OF_FILES = {"quick", "tpu_aot"}  # marks that only the files of tests give, not what they import

LIMITS = {
    "SSE4_2": ("SSE41", "avx"),
    "AVX": ("AVX", "avx2"),
    "AVX2": ("AVX2", "avx512f"),
    "AVX512": ("AVX512_CORE", "avx512_vnni"),
    "AVX512_VNNI": ("AVX512_CORE_VNNI", "avx512_bf16"),
    "AVX512_BF16": ("AVX512_CORE_BF16", "amx_tile"),
}
"""Instruction sets by XLA's names, each with oneDNN's name and what Linux calls the first instructions beyond it."""

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

_SHARED = "JAX_COMPILATION_CACHE_DIR"

_AREAS = Path("/proc/self/maps")
_MOST_AREAS = 40_000  # of 65,530 by default; a program of an emulated kernel has hundreds
_LOOK_S = 5.0  # a look at so many takes 50 ms
_looked = [0.0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options that sessions of the noxfile use."""
    parser.addoption("--tier", choices=TIERS, help="run the tests of this tier only")
    parser.addoption("--tiers", action="store_true", help="run nothing: count how many tests of a file each tier has")
    parser.addoption("--max-isa", choices=LIMITS, help="run as on a CPU that has this instruction set at most")
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help="fail tests that are skipped for want of something that could be installed, not of a machine",
    )


def pytest_cmdline_main(config: pytest.Config) -> int | pytest.ExitCode | None:
    """Print the table of `--tiers`."""
    return wrap_session(config, _print_tiers) if config.getoption("tiers") else None


def _print_tiers(config: pytest.Config, session: pytest.Session) -> None:
    session.perform_collect()
    counts: dict[str, Counter[str]] = {}
    for item in session.items:
        counts.setdefault(item.nodeid.partition("::")[0], Counter()).update(t for t in TIERS if _is_in(item, t))
    counts["all"] = sum(counts.values(), Counter())
    width, write = max(map(len, counts)), config.get_terminal_writer().line
    write(" " * width + "".join(f"{tier:>8}" for tier in TIERS))
    for file, found in counts.items():
        write(file.ljust(width) + "".join(f"{found[tier] or '-':>8}" for tier in TIERS))


def _is_in(item: pytest.Item, tier: str) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    wanted, unwanted = TIERS[tier]
    return wanted <= marks and not unwanted & marks


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without a test of the tier, where their text tells: it would take longer than the tests."""
    wanted = TIERS[config.getoption("tier")][0] & _OF_FILES if config.getoption("tier") else set()
    if not (wanted and collection_path.name.startswith("test_") and collection_path.is_file()):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if any(f"mark.{mark}" in text for mark in wanted) else True


def pytest_configure(config: pytest.Config) -> None:
    """Let workers, and the processes that tests start, find what one of them has compiled.

    A folder that the environment names stays; nox names one. Counting compilations is not harmed: JAX reports a step
    that it reads from this folder as it does a compiled one.
    """
    settings.load_profile("few" if config.getoption("tier") in ("quick", "cpu") else "workspace")
    if isa := config.getoption("max_isa"):
        _limit(isa)
    if _SHARED not in os.environ:
        folder = tempfile.mkdtemp(prefix="mis-compiled-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ[_SHARED] = folder
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    # With a limit JAX locks the folder; without, one process may read what another is still writing.
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**30))


def _limit(isa: str) -> None:
    """Have XLA, PyTorch's oneDNN and the native library do without larger instruction sets, if the CPU has such."""
    of_onednn, beyond = LIMITS[isa]
    if beyond not in Path("/proc/cpuinfo").read_text().split():
        pytest.exit(f"this CPU has nothing beyond {isa}: run without the limit", returncode=0)
    limited = {"XLA_FLAGS": f"--xla_cpu_max_isa={isa}", "ONEDNN_MAX_CPU_ISA": of_onednn, "MIS_MAX_ISA": isa}
    os.environ.update(limited)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the tier; refuse those of TPUs that elsewhere would not emulate, but test something else."""
    if tier := config.getoption("tier"):
        config.hook.pytest_deselected(items=[item for item in items if not _is_in(item, tier)])
        items[:] = [item for item in items if _is_in(item, tier)]
    for item in items:
        if item.get_closest_marker("tpu") and "interpret" not in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid}: a test marked tpu takes the fixture `interpret`")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Drop compiled programs before they have more memory areas than Linux allows a process: LLVM crashes then."""
    last_of_file = nextitem is None or nextitem.path != item.path
    if "jax" not in sys.modules or not (last_of_file or monotonic() - _looked[0] > _LOOK_S):
        return
    areas = _AREAS.read_bytes().count(b"\n") if _AREAS.exists() else 0
    if areas > (_MOST_AREAS // 4 if last_of_file else _MOST_AREAS):
        import jax

        jax.clear_caches()
        gc.collect()
    _looked[0] = monotonic()


@pytest.fixture(scope="session")
def gpu() -> Callable[[], AbstractContextManager[None]]:
    """Give what makes code for this machine's GPU within a block, or emulates kernels for an H100."""
    import jax

    from mis_kernels.target import compiling_for

    emulated = jax.default_backend() != "gpu"
    return functools.partial(compiling_for, "h100" if emulated else None, interpret=emulated)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge the skip of a test."""
    return _judged((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge the skip of a whole file."""
    return _judged((yield), collector.config)


def _judged(report: Report, config: pytest.Config) -> Report:
    """Return the report; failed if it is of a skip that strictness does not allow.

    Reasons that begin with "needs" name what the machine has not and an installation of packages cannot give it.
    """
    if report.skipped and config.getoption("strict_skips") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith("needs "):
            report.outcome, report.longrepr = "failed", f"Skipped, though it could be provided for: {reason}"
    return report
