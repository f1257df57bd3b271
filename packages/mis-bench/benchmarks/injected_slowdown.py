"""Show that `mis-bench perf` catches a slower engine, and leaves an unchanged one alone.

    python packages/mis-bench/benchmarks/injected_slowdown.py [--percent 12] [--unchanged 1] [--slowed 1]
        [OPTION ...]

Compares a checkout of HEAD with HEAD as often as `--unchanged` says, and then as often as `--slowed` says after making
that checkout's engine slower: whenever the last step under way is over, it waits, busily, for 12 % of the time since
the first one began. So steps still overlap with the host's work. What was measured may be a little less than what was
injected, since planning and answering are not slowed.

Further options go to `mis-bench perf`. Exit status 1 if a comparison came out
wrong. Leave the machine alone meanwhile.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mis_bench.artifact import ArtifactError
from mis_bench.perf.judge import judge, worst
from mis_bench.perf.sources import PerfError
from mis_bench.results.folder import read_results

REPOSITORY = Path(__file__).parents[3]
RUNNER = "packages/mis-core/src/mis_core/runner/runner.py"
SLOWER = """

_run, _wait, _under_way, _began = Runner.run, Running.wait, 0, 0.0


def _start(self, plan):
    global _under_way, _began
    if _under_way == 0:
        _began = time.perf_counter()
    _under_way += 1
    return _run(self, plan)


def _finish(self):
    global _under_way
    values = _wait(self)
    _under_way -= 1
    if _under_way == 0:  # a busy wait next to a step would take its processors
        ended = time.perf_counter()
        while time.perf_counter() < ended + {share} * (ended - _began):
            pass
    return values


Runner.run, Running.wait = _start, _finish
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `mis-bench perf` found.

    Attributes:
        verdict: Of all workloads.
        changes: Relative changes of throughput by workload.
        seconds: How long it took.
    """

    verdict: str
    changes: list[float]
    seconds: float

    def __str__(self) -> str:
        """Return one line, with the median change and the range of workloads."""
        middle, low, high = statistics.median(self.changes), min(self.changes), max(self.changes)
        return f"{self.verdict}, {middle:+.1%} ({low:+.1%} to {high:+.1%}), {self.seconds:.0f} s"


def slow_down(checkout: Path, percent: float) -> None:
    """Make every step of a checkout's engine take so much longer."""
    with (checkout / RUNNER).open("a") as file:
        file.write(SLOWER.format(share=percent / 100))


def compare(checkout: Path, options: list[str]) -> Comparison:
    """Compare a checkout with its commit."""
    output = checkout.parent / "perf"
    shutil.rmtree(output, ignore_errors=True)
    sides = ["--repository", str(checkout), "--base", "HEAD", "--output", str(output)]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mis_bench", "perf", *options, *sides], check=False)
    seconds = time.perf_counter() - began
    try:
        found = judge(read_results(output))
    except (ArtifactError, PerfError) as error:
        sys.exit(f"The comparison was not made: {error}")
    return Comparison(worst(each.status for each in found), [each.by_clock.value for each in found], seconds)


def several(checkout: Path, options: list[str], times: int, what: str) -> int:
    """Compare so many times, print a line for each, and return how many failed."""
    found = []
    for number in range(1, times + 1):
        found.append(compare(checkout, options))
        sys.stdout.write(f"{what}, {number} of {times}: {found[-1]}\n")
        sys.stdout.flush()
    return sum(each.verdict == "fail" for each in found)


def main() -> None:
    """Compare, count, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--percent", type=float, default=12.0, help="Of a step's time, that is added to it.")
    parser.add_argument("--unchanged", type=int, default=1, help="Comparisons of unchanged code.")
    parser.add_argument("--slowed", type=int, default=1, help="Comparisons of slower code.")
    chosen, options = parser.parse_known_args()
    injected = f"{1 / (1 + chosen.percent / 100) - 1:+.1%} injected"
    with tempfile.TemporaryDirectory(prefix="mis-slowdown-") as folder:
        checkout = Path(folder) / "checkout"
        git = ["git", "-C", str(REPOSITORY), "worktree"]
        subprocess.run([*git, "add", "--detach", str(checkout), "HEAD"], check=True, capture_output=True)
        try:
            alarms = several(checkout, options, chosen.unchanged, "unchanged")
            slow_down(checkout, chosen.percent)
            caught = several(checkout, options, chosen.slowed, injected)
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True, capture_output=True)
    sys.stdout.write(f"unchanged: {alarms} alarms in {chosen.unchanged}\n")
    sys.stdout.write(f"{chosen.percent:g} % slower: {caught} caught of {chosen.slowed}\n")
    sys.exit(alarms > 0 or caught < chosen.slowed)


if __name__ == "__main__":
    main()
