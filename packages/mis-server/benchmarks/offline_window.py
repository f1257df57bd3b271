"""Rows per second of `mis-server score` where rows of a query are far apart, and what its processes have in memory.

    python packages/mis-server/benchmarks/offline_window.py [--model FOLDER] [--rows 20000] [--queries 40 10000]
        [--query-words 50] [--item-words 12] [--seed 0] [--orders sorted shuffled] [--trees . /other/clone] [--rounds 1]
        [--instant]

Without a model, one of random weights: six layers of SmolLM2's shape, which `--layers`, `--shape` and `--divisor`
change. Each file is scored by each tree of sources in turn, in a process of its own. The rate is the progress bar's at
its end, which begins when the engine is ready; where others use the machine, compare processor time, too. The answer to
a row must be the same, byte for byte, in every run.

`front` and `tokenizer` are the most MiB that these processes had resident at one time, all of a kind together. For
memory, make a file large and leave the engine out: `--instant --rows 200000 --query-words 150 --item-words 150`.
"""

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import instant_engine

from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.corpus import corpus
from mis_testing.published import SHAPES, divided

PACKAGES = ("mis-kernels", "mis-core", "mis-server", "mis-bench", "mis-testing")
_SAMPLE_S = 0.2
_MIB = 2**20


@dataclass(frozen=True)
class Run:
    """What a command did.

    Attributes:
        rate: Rows per second.
        cpu_s: Processor time of all its processes, their start included.
        resident: The most MiB of its processes, by their kind.
    """

    rate: float
    cpu_s: float
    resident: Counter[str]

    def __str__(self) -> str:
        memory = ", ".join(f"{kind} {mib} MiB" for kind, mib in sorted(self.resident.items()))
        return f"{self.rate:8.1f} rows/s, {self.cpu_s:6.1f} s of processors; {memory}"


def lines_of(options: argparse.Namespace, queries: int) -> list[str]:
    """Return rows sorted by query, each of which has as many rows as the others."""
    words = sorted(set(" ".join(corpus()).split()))
    rng = random.Random(options.seed)

    def text(count: int) -> str:
        return " ".join(rng.choices(words, k=count))

    asked = [f"{text(options.query_words)} " for _ in range(queries)]
    rows = range(options.rows)
    return [json.dumps({"query": asked[row * queries // len(rows)], "item": text(options.item_words)}) for row in rows]


def resident(parent: int) -> Counter[str]:
    """Return the MiB of a process and its children, by their kind."""
    found: Counter[str] = Counter()
    for pid in family(parent):
        with suppress(OSError):  # it has just ended
            command = Path(f"/proc/{pid}/cmdline").read_text()
            kind = "front" if pid == parent else "tokenizer" if "tokenizers." in command else "engine"
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found[kind] += pages * os.sysconf("SC_PAGE_SIZE") // _MIB
    return found


def family(parent: int) -> Iterator[int]:
    """Yield a process and its children."""
    yield parent
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def score(tree: Path, model: Path, items: Path, output: Path, options: argparse.Namespace) -> Run:
    """Run the command with the sources of a tree."""
    command = [instant_engine.__file__] if options.instant else ["-m", "mis_server"]
    paths = os.pathsep.join(str(tree.absolute() / "packages" / name / "src") for name in PACKAGES)
    arguments = ["score", str(model), "--items", str(items), "--output", str(output), "--labels", " yes", " no"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, *command, *arguments, *options.flags, "--overwrite"],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    most, ended = Counter[str](), threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(_SAMPLE_S):
            most |= resident(process.pid)  # the larger of each

    watching = threading.Thread(target=watch)
    watching.start()
    shown = process.communicate()[1].decode()
    ended.set()
    watching.join()
    assert process.returncode == 0, shown[-3000:]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Run(float(re.findall(r"([0-9.]+)item/s", shown)[-1]), cpu_s, most)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint; default: random weights")
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--divisor", type=int, default=1, help="of the other sizes of the shape")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--queries", type=int, nargs="+", default=[40, 10_000])
    parser.add_argument("--query-words", type=int, default=50)
    parser.add_argument("--item-words", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0, help="of the rows and of their order")
    parser.add_argument("--orders", nargs="+", choices=["sorted", "shuffled"], default=["sorted", "shuffled"])
    parser.add_argument("--trees", type=Path, nargs="+", default=[Path()], help="clones whose sources are run")
    parser.add_argument("--instant", action="store_true", help="with an engine that computes nothing")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="of `mis-server score`, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = divided(SHAPES[options.shape], options.divisor) | {"num_hidden_layers": options.layers}
        model = options.model or tiny_checkpoint(folder / "model", **sizes)
        items, output = folder / "items.jsonl", folder / "output.jsonl"
        for queries in options.queries:
            lines, order = lines_of(options, queries), list(range(options.rows))
            random.Random(options.seed).shuffle(order)
            outputs: set[tuple[str, ...]] = set()
            for arranged in options.orders:
                chosen = order if arranged == "shuffled" else range(options.rows)
                items.write_text("".join(lines[row] + "\n" for row in chosen))
                for _ in range(options.rounds):
                    for tree in options.trees:
                        run = score(tree, model, items, output, options)
                        answers = dict(zip(chosen, output.read_text().splitlines(), strict=True))
                        outputs.add(tuple(answers[row] for row in range(options.rows)))
                        sys.stdout.write(f"{queries:6} queries, {arranged:8} {tree}: {run}\n")
                        sys.stdout.flush()
            assert len(outputs) == 1, f"{len(outputs)} different outputs"


if __name__ == "__main__":
    main()
