"""For every test of the workspace: one folder for what is compiled, no deadlines, and skips that are looked at."""

import functools
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic
from typing import TypeVar

import pytest
from hypothesis import settings

# A machine that is busy with something else must not fail a test: timings belong to benchmarks.
settings.register_profile("workspace", deadline=None)
settings.load_profile("workspace")

# JAX, PyTorch and all tests are a million objects that stay; looking through them at Python's pace takes a tenth of the
# time of tests that do not compile.
gc.set_threshold(20_000, 20, 20)

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

_SHARED = "JAX_COMPILATION_CACHE_DIR"

_AREAS = Path("/proc/self/maps")
_MOST_AREAS = 40_000  # of 65,530 by default; a program of an emulated kernel has hundreds
_LOOK_S = 5.0  # a look at so many takes 50 ms
_looked = [0.0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--strict-skips`."""
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help="fail tests that are skipped for want of something that could be installed, not of a machine",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let workers, and the processes that tests start, find what one of them has compiled.

    A folder that the environment names stays; nox names one. Counting compilations is not harmed: JAX reports a step
    that it reads from this folder as it does a compiled one.
    """
    if _SHARED not in os.environ:
        folder = tempfile.mkdtemp(prefix="mis-compiled-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ[_SHARED] = folder
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    # With a limit JAX locks the folder; without, one process may read what another is still writing.
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**30))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests of the TPU tier that elsewhere would not emulate its kernels, but test something else."""
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
