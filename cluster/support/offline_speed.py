"""Score the same rows by one process and by actors of Ray Data, and tell what the processors did meanwhile.

python cluster/support/offline_speed.py --rows 20000 --queries 2000 --actors 2

Prints a JSON object for each run: seconds of the whole command; from a tenth of what is written to nine tenths,
rows a second, the seconds that each kind of process had processors for, and the seconds that no process wanted them.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mis_testing.checkpoint import tiny_checkpoint
from ray_node import commands, ray_node

_POLL_S = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")
_KINDS = {  # by what is in a command line; the first that fits
    "engine": ("mis_core.process.main",),
    "tokenizer": ("mis_server.tokenizers",),
    "actor": ("ray::",),
    "ray": ("raylet", "gcs_server", "ray/_private", "ray/dashboard"),
    "command": ("mis_server score",),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is at a moment.

    Attributes:
        at: Seconds.
        written: Bytes of output.
        used: Seconds of processor time that each process has had, by its id.
        idle: Seconds of all processors together that were idle since the machine was started.
    """

    at: float
    written: int
    used: dict[int, float]
    idle: float


def main() -> None:
    """Parse the command line, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2], help="actors of each run; default: 1 2")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, checkpoint = folder / "rows.jsonl", tiny_checkpoint(folder / "model")
        lines = (
            json.dumps({"id": i, "query": f"Is {i % given.queries} an animal? ", "item": f"item {i // given.queries}"})
            for i in range(given.rows)
        )
        rows.write_text("\n".join(lines) + "\n")
        options = ["--labels", "yes", "no", "--dtype", "float32", "--skip-warmup", "--chunked-prefill-size", "256"]
        command = [sys.executable, "-m", "mis_server", "score", str(checkpoint), *options]
        alone = folder / "alone.jsonl"
        report("one process", given.rows, [*command, "--items", str(rows), "--output", str(alone)], alone)
        with ray_node(cpus=max(given.actors) + 1) as node:
            for actors in given.actors:
                output = folder / f"by-{actors}"
                ray = ("--ray", node.address, "--input", str(rows), "--output", str(output), "--actors", str(actors))
                part = rows.stat().st_size // 24 + 1
                report(f"{actors} actors", given.rows, [*command, *ray, "--part-bytes", str(part)], output)
                got = b"".join(path.read_bytes() for path in sorted(output.glob("*/*.jsonl")))
                assert got == alone.read_bytes(), "other scores than those of one process"


def report(name: str, rows: int, command: list[str], output: Path) -> None:
    """Run a command to its end and print how."""
    begin = time.monotonic()
    kinds: dict[int, str] = {}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        seen = list(watch(process, output, kinds))
        log.seek(0)
        assert process.returncode == 0, log.read().decode()[-3000:]
    size = seen[-1].written
    first = next(each for each in seen if each.written >= 0.1 * size)
    last = next(each for each in seen if each.written >= 0.9 * size)
    seconds = last.at - first.at
    used: Counter[str] = Counter()
    for pid, until in last.used.items():
        used[kinds[pid]] += until - first.used.get(pid, 0.0)
    found = {
        "run": name,
        "command_s": round(time.monotonic() - begin, 1),
        "between_s": round(seconds, 1),
        "rows_a_second": round(rows * (last.written - first.written) / size / seconds),
        "processors": os.cpu_count(),
        "processor_s": {kind: round(value, 1) for kind, value in used.most_common()},
        "idle_s": round(last.idle - first.idle, 1),
    }
    print(json.dumps(found), flush=True)


def watch(process: subprocess.Popen[bytes], output: Path, kinds: dict[int, str]) -> Iterator[Seen]:
    """Yield what there is, again and again until the process has ended; fill in of what kind processes are."""
    while process.poll() is None:
        for pid, command in commands().items():
            kinds[pid] = kind_of(command)
        yield now(output, kinds)
        time.sleep(_POLL_S)
    yield now(output, kinds)


def now(output: Path, kinds: dict[int, str]) -> Seen:
    """Return what there is."""
    files = list(output.glob("*/*.jsonl")) if output.is_dir() else [output] * output.exists()
    used = {}
    for pid in kinds:
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    idle = int(Path("/proc/stat").read_text().split()[4]) / _TICKS
    return Seen(time.monotonic(), sum(path.stat().st_size for path in files), used, idle)


def kind_of(command: str) -> str:
    """Return the kind of a process."""
    return next((kind for kind in _KINDS if any(part in command for part in _KINDS[kind])), "others")


if __name__ == "__main__":
    main()
