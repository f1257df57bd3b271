"""A target without a model, in place of whatever a command would open, and a clock that only its calls move."""

import dataclasses
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from mis_bench.targets.base import About, CallFailed, Reply, TargetUnavailable
from mis_bench.workload import Workload

CALL_S = 2e-5
"""What a call takes by the clock; less than it really does."""


class Clock:
    """Seconds that pass only when a test lets them."""

    def __init__(self) -> None:
        self.seconds, self._lock = 100.0, threading.Lock()

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds


class FakeTarget:
    """Answers at once, with scores that depend on the items alone; what goes wrong is up to a test.

    Attributes:
        about: What it says of itself.
        calls: Workloads asked so far.
        forgotten: Calls of `forget`.
        compilations: What it says of those.
        before: Called with the number of a call and its workload before it is answered: to fail, to wait, to count.
        scores: Makes the answer.
    """

    def __init__(self, options: Mapping[str, str], clock: Clock) -> None:
        self.about = About(
            name="engine",
            backend="fake",
            model="none",
            model_sha256="0" * 64,
            dtype=options.get("dtype", "bfloat16"),
            options=dict(options),
            versions={"fake": "1.0"},
        )
        self.calls: list[Workload] = []
        self.forgotten = self.compilations = 0
        self.is_closed = False
        self.before: Callable[[int, Workload], object] = lambda _number, _workload: None
        self.scores: Callable[[Workload], np.ndarray] = plain_scores
        self._clock, self._lock = clock, threading.Lock()

    def score(self, workload: Workload) -> Reply:
        with self._lock:
            number = len(self.calls)
            self.calls.append(workload)
        self._clock.wait(CALL_S)
        self.before(number, workload)
        return Reply(self.scores(workload), {"device": 0.1}, 0)

    def forget(self) -> None:
        self.forgotten += 1

    def counts(self) -> dict[str, float]:
        return {"compilations": float(self.compilations), "steps": float(len(self.calls))}

    def close(self) -> None:
        self.is_closed = True


def plain_scores(workload: Workload) -> np.ndarray:
    """Scores of `[items, labels]`, of each item alone."""
    labels = len(workload.label_token_ids)
    first = np.array([sum(map(int, item)) % 97 / 100 for item in workload.items])
    return np.repeat(first[:, None], labels, 1) / labels


@dataclasses.dataclass
class Fakes:
    """Targets that commands opened, and how to spoil them.

    Attributes:
        opened: In order.
        prepare: Called with every target before it is handed out.
        refuse: Returns why options cannot be had, or None.
        clock: By which calls are timed.
    """

    opened: list[FakeTarget] = dataclasses.field(default_factory=list)
    prepare: Callable[[FakeTarget], object] = lambda _target: None
    refuse: Callable[[Mapping[str, str]], str | None] = lambda _options: None
    clock: Clock = dataclasses.field(default_factory=Clock)

    def make(self, spec: str, *, model: Path | None = None, options: Mapping[str, str] | None = None) -> FakeTarget:
        why = self.refuse(options or {})
        if why is not None:
            raise TargetUnavailable(why)
        target = FakeTarget(options or {}, self.clock)
        self.prepare(target)
        self.opened.append(target)
        return target


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Every target that commands open is a `FakeTarget`, and calls are timed by its clock."""
    found = Fakes()
    clock = SimpleNamespace(perf_counter=found.clock.now, sleep=found.clock.wait)
    monkeypatch.setattr("mis_bench.measure.time", clock)
    monkeypatch.setattr("mis_bench.targets.registry.make_target", found.make)
    return found


@pytest.fixture
def failing() -> Callable[..., Callable[[int, Workload], None]]:
    """`failing("timeout", items=8)`: a `FakeTarget.before` that fails calls of so many items, or from a number on."""

    def make(reason: str, *, items: int = 0, since: int = 0) -> Callable[[int, Workload], None]:
        def before(number: int, workload: Workload) -> None:
            if workload.num_items >= items and number >= since:
                raise CallFailed(reason, f"{workload.num_items} items are too many.")

        return before

    return make


@pytest.fixture
def missions(tmp_path: Path, fakes: Fakes) -> Path:
    """A folder with the folders `run`, `stress` and `matrix`, each made by its command."""
    commands = {
        "run": ["--workload", "probe-9-3-4@3", "--runs", "4", "--warmup-runs", "2"],
        "stress": ["--scenario", "large-batch"],
        "matrix": ["--workload", "probe-9-4-3", "--chunk-sizes", "1,4", "--hourly-cost", "2"],
    }
    for name, flags in commands.items():
        done = CliRunner().invoke(main, [name, *flags, "--output", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
    return tmp_path


@pytest.fixture(scope="session")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture
def stored(_kept: dict[str, Path], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`missions`, made once."""
    if not _kept:
        folder = tmp_path_factory.mktemp("stored")
        shutil.copytree(request.getfixturevalue("missions"), folder, dirs_exist_ok=True)
        _kept["folder"] = folder
    return _kept["folder"]
