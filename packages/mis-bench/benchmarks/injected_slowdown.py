"""Show that `mis-bench perf` catches a slower engine, and leaves an unchanged one alone.

    python packages/mis-bench/benchmarks/injected_slowdown.py [--percent 12] [--unchanged 1] [--slowed 1] [OPTION ...]

Compares a checkout of HEAD with HEAD as often as `--unchanged` says, and then as often as `--slowed` says after making
every step of that checkout's engine wait, busily, for 12 % of the time that it took. Further options go to
`mis-bench perf`. Exit status 1 if a comparison came out wrong. Each takes some minutes; leave the machine alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
RUNNER = "packages/mis-core/src/mis_core/runner/runner.py"
SLOWER = """

_run, _until = Runner.run, 0.0


def _slower(self, plan):
    global _until
    asked = time.perf_counter()
    running = _run(self, plan)
    jax.block_until_ready((running.logits, running.normalisers, self._cache))
    ended = time.perf_counter()
    _until = ended + {share} * (ended - max(asked, _until))
    while time.perf_counter() < _until:
        pass
    return running


Runner.run = _slower
"""


def slow_down(checkout: Path, percent: float) -> None:
    """Make every step of a checkout's engine take so much longer."""
    with (checkout / RUNNER).open("a") as file:
        file.write(SLOWER.format(share=percent / 100))


def compare(checkout: Path, options: list[str]) -> str:
    """Compare a checkout with its commit; return the verdict."""
    output = checkout.parent / "perf.json"
    output.unlink(missing_ok=True)
    sides = ["--repository", str(checkout), "--base", "HEAD", "--output", str(output)]
    subprocess.run([sys.executable, "-m", "mis_bench", "perf", *options, *sides], check=False)
    if not output.exists():
        sys.exit("The comparison was not made.")
    return json.loads(output.read_text())["verdict"]


def main() -> None:
    """Compare, count, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--percent", type=float, default=12.0)
    parser.add_argument("--unchanged", type=int, default=1)
    parser.add_argument("--slowed", type=int, default=1)
    options, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="mis-slowdown-") as folder:
        checkout = Path(folder) / "checkout"
        git = ["git", "-C", str(REPOSITORY), "worktree"]
        subprocess.run([*git, "add", "--detach", str(checkout), "HEAD"], check=True, capture_output=True)
        try:
            alarms = sum(compare(checkout, others) == "fail" for _ in range(options.unchanged))
            slow_down(checkout, options.percent)
            caught = sum(compare(checkout, others) == "fail" for _ in range(options.slowed))
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True, capture_output=True)
    sys.stdout.write(f"unchanged: {alarms} alarms in {options.unchanged}\n")
    sys.stdout.write(f"{options.percent:g} % slower: {caught} caught of {options.slowed}\n")
    sys.exit(alarms > 0 or caught < options.slowed)


if __name__ == "__main__":
    main()
