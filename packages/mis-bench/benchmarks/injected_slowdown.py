"""Show that `mis-bench perf` catches a slower engine, and leaves an unchanged one alone.

    python packages/mis-bench/benchmarks/injected_slowdown.py [--percent 12] [--unchanged 1] [--slowed 1] [OPTION ...]

Compares a checkout of HEAD with HEAD as often as `--unchanged` says, and then as often as `--slowed` says after making
every step of that checkout's engine wait, busily, for 12 % of the time that it took. Further options go to
`mis-bench perf`. Exit status 1 if a comparison came out wrong. Each takes some minutes; leave the machine alone.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
RUNNER = "packages/mis-core/src/mis_core/runner/runner.py"
STEP = re.compile(r"^( *)hidden, self\._cache = self\._steps\[.*\n", re.MULTILINE)
SLOWER = """\
asked = time.perf_counter()
{step}
hidden.block_until_ready()
ended = time.perf_counter()
self._waited_until = ended + {share} * (ended - max(asked, getattr(self, "_waited_until", 0.0)))
while time.perf_counter() < self._waited_until:
    pass
"""


def slow_down(checkout: Path, percent: float) -> None:
    """Make every step of a checkout's engine take so much longer."""
    path = checkout / RUNNER
    text = path.read_text()
    found = STEP.findall(text)
    if len(found) != 1:
        sys.exit(f"{RUNNER} no longer has the line that runs a step; adapt STEP in {__file__}.")

    def slower(match: re.Match[str]) -> str:
        lines = SLOWER.format(step=match[0].strip(), share=percent / 100)
        return textwrap.indent(lines, match[1])

    path.write_text("import time\n" + STEP.sub(slower, text))


def compare(checkout: Path, options: list[str]) -> int:
    """Compare a checkout with its commit; return the exit status."""
    command = [sys.executable, "-m", "mis_bench", "perf", "--repository", str(checkout), "--base", "HEAD", *options]
    return subprocess.run(command, check=False).returncode


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
            alarms = sum(compare(checkout, others) != 0 for _ in range(options.unchanged))
            slow_down(checkout, options.percent)
            caught = sum(compare(checkout, others) == 1 for _ in range(options.slowed))
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True, capture_output=True)
    sys.stdout.write(f"unchanged: {alarms} alarms in {options.unchanged}\n")
    sys.stdout.write(f"{options.percent:g} % slower: {caught} caught of {options.slowed}\n")
    sys.exit(alarms > 0 or caught < options.slowed)


if __name__ == "__main__":
    main()
