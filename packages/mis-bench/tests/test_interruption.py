"""What a command leaves and says that a signal or a full disk ends."""

import asyncio
import itertools
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench_fakes import Done, Fakes, FakeTarget
from mis_bench.manifest import VIEW
from mis_bench.results.folder import RECORDS, append
from mis_bench.targets.blocking import BlockingOpener, BlockingTarget
from mis_bench.targets.target import About, Layout, Reply
from mis_bench.workload import Workload

Bench = Callable[..., Done]

STRESS = ("stress", "--scenario", "large-batch", "--scenario", "concurrent", "--seconds", "2")


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """SIGINT is heard, also where a shell started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def ignored(heard: None) -> None:
    """SIGINT is ignored, as it is in what a shell starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def interrupted_by(number: signal.Signals, items: int) -> Callable[[FakeTarget], None]:
    """Spoil a target: a signal arrives with the second request of so many items; the first warms up."""
    asked = itertools.count(1)

    def before(_: int, workload: Workload) -> None:
        if workload.num_items == items and next(asked) == 2:
            signal.raise_signal(number)

    return lambda target: setattr(target, "before", before)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_sets_the_exit_status_and_keeps_measurements(
    bench: Bench, fakes: Fakes, number: signal.Signals, status: int
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    fakes.prepare = interrupted_by(number, items=100)
    done = bench(*STRESS)
    assert done.status == status
    last_line = done.result.stderr.splitlines()[-1]
    assert last_line == f"Interrupted. What was measured until then is in {done.folder}."
    assert [window.case for window in done.results.windows if window.phase == "timed"] == ["large-batch-50"]
    assert {row.name: row.calls for row in done.summary.rows}["large-batch-50"] == 5
    assert all(target.is_closed for target in fakes.opened)
    assert signal.getsignal(signal.SIGTERM) == handler


def test_sigterm_ends_what_does_not_hear_sigint(bench: Bench, fakes: Fakes, ignored: None) -> None:
    fakes.prepare = interrupted_by(signal.SIGTERM, items=100)
    done = bench(*STRESS)
    assert done.status == 143
    assert len(done.results.windows) > 0


def test_an_interrupted_command_without_results_names_no_folder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mis_bench.presets.bench.environment", interrupted)
    done = bench(*STRESS)
    assert (done.status, done.result.stderr.splitlines()[-1]) == (130, "Interrupted.")
    assert not done.folder.exists()


@pytest.mark.parametrize("file", [RECORDS, "plan.json.partial", "summary.json.partial", "manifest.json.partial", VIEW])
def test_a_full_disk_names_file_and_folder(bench: Bench, fakes: Fakes, tmp_path: Path, file: str) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / file).symlink_to("/dev/full")
    done = bench(*STRESS, folder=folder)
    assert done.status == 1
    name = folder / file.removesuffix(".partial")
    assert f"{name}: No space left on device. What was measured until then is in {folder}." in done.said


def test_progress_shows_every_window_and_how_much_of_one_is_over(
    bench: Bench, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, float, int]] = []

    class Shown:
        def __enter__(self) -> Callable[[str, float, int], None]:
            return lambda *what: told.append(what)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("mis_bench.presets.bench.progress", lambda _title: Shown())
    bench("stress", "--seconds", "2")
    assert {total for _, _, total in told} == {7}
    shares = [over for _, over, _ in told]
    assert shares == sorted(shares)
    assert {int(over) for over in shares} == set(range(8))
    sustained = {over for what, over, _ in told if what == "sustained-16"}
    assert len(sustained) > 5
    told.clear()
    bench("run", "--trace", "mixed:100:20")
    assert [over for _, over, _ in told if over][:-1] == pytest.approx([number / 20 for number in range(1, 21)])


def test_a_disk_that_fills_up_within_a_line_leaves_whole_lines(bench: Bench, fakes: Fakes) -> None:
    done = bench("run", "--profile", "smoke", "--runs", "1")
    path, results = done.folder / RECORDS, done.results
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            append(done.folder, results.calls)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before


PROGRAM = """
import os, signal, threading, time
import click
from mis_bench import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this

@cli.main.command()
@click.argument("name")
def compute(name):
    threading.Thread(target=time.sleep, args=(600,)).start()
    click.echo("It computes.")
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(600)

cli.run()
"""


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_program_does_not_wait_for_its_threads(name: str, status: int) -> None:
    command = [sys.executable, "-c", PROGRAM, "compute", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (status, "It computes.\n", "\nInterrupted.\n")


def test_a_target_that_opens_when_it_is_too_late_is_closed() -> None:
    may_open, closed = threading.Event(), threading.Event()

    class Slow(BlockingTarget):
        about = About("slow", "fake", "none")

        def __init__(self) -> None:
            may_open.wait(60)

        def score(self, workload: Workload, layout: Layout) -> Reply:
            raise NotImplementedError

        def close(self) -> None:
            closed.set()

    async def cancelled() -> None:
        opening = asyncio.ensure_future(BlockingOpener(Slow).open())
        await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(cancelled())  # which does not wait for the thread
    assert not closed.is_set()
    may_open.set()
    assert closed.wait(60)
