"""Servers that are fakes, and commands whose targets are, in virtual time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench_fakes import Clock, Done, Fakes, virtual
from fake_server import FakeServer
from mis_bench.cli import main
from mis_bench.targets.target import CallFailed
from mis_bench.workload import Workload


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A server whose replies a test decides."""
    found = FakeServer()
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the measuring loop, and of `asyncio.run`."""
    return virtual(monkeypatch)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Fakes:
    """Every target that commands open is a `FakeTarget`, and time is virtual."""
    found = Fakes(clock)
    monkeypatch.setattr("mis_bench.targets.registry.opener", found.opener)
    return found


@pytest.fixture
def bench(fakes: Fakes, tmp_path: Path) -> Callable[..., Done]:
    """`bench("run", "--workload", ...)`: a measuring command, its results in a new folder, its targets fakes."""
    numbers = iter(range(1000))

    def run(*arguments: str, folder: Path | None = None) -> Done:
        folder = folder or tmp_path / f"results-{next(numbers)}"
        result = CliRunner().invoke(main, [*arguments, "--output", str(folder)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return Done(result, folder)

    return run


@pytest.fixture
def failing() -> Callable[..., Callable[[int, Workload], None]]:
    """`failing("timeout", items=8)`: a `FakeTarget.before` that fails calls of so many items, or from a number on."""

    def make(reason: str, *, items: int = 0, since: int = 0) -> Callable[[int, Workload], None]:
        def before(number: int, workload: Workload) -> None:
            if workload.num_items >= items and number >= since:
                raise CallFailed(reason, f"{workload.num_items} items are too many.")

        return before

    return make
