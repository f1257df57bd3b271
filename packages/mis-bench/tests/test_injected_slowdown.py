"""The slowdown that shows that `mis-bench perf` catches one."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "injected_slowdown.py"


class Clock:
    """Time that passes only when something happens; being asked takes a millisecond."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now


def test_the_share_is_added_once_nothing_is_under_way() -> None:
    clock = Clock()

    class Running:
        def wait(self) -> str:
            clock.now += 10
            return "values"

    class Runner:
        def run(self, plan: object) -> Running:
            clock.now += 1
            return Running()

    code = runpy.run_path(str(SCRIPT))["SLOWER"].format(share=0.12)
    exec(code, {"Runner": Runner, "Running": Running, "time": clock})
    first, second = Runner().run(None), Runner().run(None)
    assert first.wait() == "values"
    assert clock.now == pytest.approx(12, abs=0.1)  # the other one is still under way
    second.wait()
    assert clock.now == pytest.approx(22 * 1.12, abs=0.1)
    Runner().run(None).wait()
    assert clock.now == pytest.approx((22 + 11) * 1.12, abs=0.1)


def test_a_checkout_is_compared_unchanged_and_slower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        if "add" in command:
            runner = Path(command[-2]) / "packages/mis-core/src/mis_core/runner/runner.py"
            runner.parent.mkdir(parents=True)
            runner.write_text("")
        elif "worktree" not in command:
            asked.append(command)
        return SimpleNamespace(returncode=0)

    def judged(_: object) -> list[SimpleNamespace]:
        values, status = ([-0.001, 0.001, 0.002], "ok") if len(asked) == 1 else ([-0.10, -0.106, -0.11], "fail")
        return [SimpleNamespace(status=status, by_clock=SimpleNamespace(value=value)) for value in values]

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("mis_bench.results.folder.read_results", lambda _: None)
    monkeypatch.setattr("mis_bench.perf.judge.judge", judged)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--model", "m"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "unchanged, 1 of 1: ok, +0.1% (-0.1% to +0.2%), 0 s" in said
    assert "-10.7% injected, 1 of 1: fail, -10.6% (-11.0% to -10.0%), 0 s" in said
    assert all(command[3:6] == ["perf", "--model", "m"] for command in asked)
