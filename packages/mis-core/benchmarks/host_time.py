"""Host time and host memory of scoring requests, by stage, without a device.

    python packages/mis-core/benchmarks/host_time.py [--items 500 1000 ... 20000] [--query 2000] [--length 20] [--json]

Runs what the host does for a request of token ids: validation, deduplication and queueing, planning of
every step, the arrays of every step, and turning values into scores; the device's answers are zeros.
Prints the median milliseconds of each stage over some rounds, and the largest memory that Python held
meanwhile, in kilobytes per item.
"""

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mis_core.models.parallel import backend_for, make_mesh
from mis_core.models.published import PUBLISHED
from mis_core.requests import Layout
from mis_core.runner.arrays import step_arrays
from mis_core.runner.buckets import token_buckets
from mis_core.scheduler.plan import StepShape
from mis_core.scheduler.reading import Values
from mis_core.scheduler.scheduler import Scheduler
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.task import finish_score, parse_score_request
from mis_kernels.backends import Backend

Stages = dict[str, float]
SHAPE = StepShape(tokens=2048, scored=256, contexts=8, pages_per_context=64, longest_item=256)


@contextmanager
def timed(stages: Stages, name: str) -> Iterator[None]:
    """Add the milliseconds of a block to a stage."""
    began = time.perf_counter()
    yield
    stages[name] += (time.perf_counter() - began) * 1e3


def host_work(body: dict[str, object], backend: Backend) -> tuple[Stages, int]:
    """Do all host work of one request; return milliseconds by stage, and the number of steps."""
    stages: Stages = defaultdict(float)
    scheduler = Scheduler(SHAPE, pages=SHAPE.pages_per_context + 8, layout=Layout())
    with timed(stages, "validate"):
        parsed = parse_score_request(body, None, Limits(context_length=4096, vocab_size=200_000))
    with timed(stages, "queue"):
        scheduler.submit(0, parsed.request)
    answer, steps = None, 0
    while answer is None:
        with timed(stages, "plan"):
            plan = scheduler.next_step()
        assert plan is not None, "a request that is not answered has steps to come"
        with timed(stages, "arrays"):
            size = next(size for size in token_buckets(SHAPE.tokens) if size >= plan.rows)
            step_arrays(backend, SHAPE, plan, size, SHAPE.scored)
        values = [
            Values(np.zeros(reading.label_ids.shape, np.float32), np.zeros(len(reading.rows), np.float32))
            for reading in plan.readings
        ]
        with timed(stages, "read"):
            answered = scheduler.complete(plan, values)
            answer = answered[0][1] if answered else None
        steps += 1
    with timed(stages, "finish"):
        finish_score(parsed, (answer,))
    return stages, steps


def measure(items: int, query: int, length: int, rounds: int) -> dict[str, object]:
    """Return medians over rounds for one size of request."""
    config = PUBLISHED["qwen3-0.6b"]
    backend = backend_for(config, np.dtype("float32"), make_mesh(1, 1))
    rng = np.random.default_rng(0)
    body = {
        "query": rng.integers(0, 150_000, query).tolist(),
        "items": rng.integers(0, 150_000, (items, length)).tolist(),
        "label_token_ids": [9454, 2753],
    }
    found = [host_work(body, backend) for _ in range(rounds + 1)][1:]
    tracemalloc.start()
    host_work(body, backend)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    stages = {name: statistics.median(stages[name] for stages, _ in found) for name in found[0][0]}
    return {
        "items": items,
        "steps": found[0][1],
        **{f"{name}_ms": round(value, 3) for name, value in stages.items()},
        "total_ms": round(sum(stages.values()), 3),
        "microseconds_per_item": round(sum(stages.values()) * 1e3 / items, 2),
        "peak_kb_per_item": round(peak / 1e3 / items, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, nargs="+", default=[500, 1000, 2000, 5000, 10_000, 20_000])
    parser.add_argument("--query", type=int, default=2000)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args()
    for index, items in enumerate(options.items):
        row = measure(items, options.query, options.length, options.rounds)
        if options.json:
            sys.stdout.write(json.dumps(row) + "\n")
            continue
        if index == 0:
            sys.stdout.write("  ".join(row) + "\n")
        sys.stdout.write("  ".join(f"{value:>{len(name)}}" for name, value in row.items()) + "\n")


if __name__ == "__main__":
    main()
