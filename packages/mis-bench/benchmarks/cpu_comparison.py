"""Items per second of whole scoring requests on this CPU: MIS's layouts, PyTorch and llama.cpp, in one run.

    python packages/mis-bench/benchmarks/cpu_comparison.py --model FOLDER [--items 500] [--rounds 2] [--json FILE]

FOLDER is made with random weights of Qwen3-0.6B's shape if it does not exist. The workload is
`canonical-2000-500-20`: a query of 2000 tokens, items of 20, labels 9454 and 2753, bfloat16. Every target
computes the query anew in every round (`warm` keeps it in MIS's prefix cache). Rounds of all targets
alternate; medians are reported. A target that cannot run is listed with the reason.

The limit is counted operations over PyTorch's rate for a product of 1280 x 1024 by 1024 x 6144 in the type that
this CPU multiplies faster, bfloat16 or float32, taken before and after every measurement. Counted: products with
weights for every token once, the last layer's and the head's as needed by the scored rows only, and both products
of attention over the keys that each token sees.

A target is eligible if its label softmaxes are within 0.02 of those of `prefill_extend`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from mis_bench.environment import environment
from mis_bench.targets.base import Scores, Target, TargetUnavailable
from mis_bench.targets.registry import make_target
from mis_bench.workload import Workload, build_workload
from mis_core.models.config import ModelConfig, read_model_config
from mis_testing import tiny_checkpoint
from mis_testing.shapes import SHAPES

QUERY, LENGTH, LABELS = 2000, 20, 2
TOLERANCE = 0.02


@dataclass(frozen=True)
class Row:
    """A target of the comparison.

    Attributes:
        make: Makes it, or raises `TargetUnavailable`; weights are shared by the rows of a kind.
        repeats_query: It computes the query for every item, and so is asked for a few items only.
        stays_warm: It may keep the query from round to round.
    """

    make: Callable[[], Target]
    repeats_query: bool = False
    stays_warm: bool = False


def rows_of(path: Path) -> dict[str, Row]:
    """Return the rows by name."""

    @cache
    def engine() -> Target:
        return make_target("engine", model=path, options={"dtype": "bfloat16", "max_total_tokens": "8192"})

    @cache
    def torch() -> Target:
        return make_target("transformers-shared", model=path)

    def mis(algorithm: str) -> Callable[[], Target]:
        return lambda: engine().asking(scoring_algorithm=algorithm)

    return {
        "mis prefill_extend": Row(mis("prefill_extend")),
        "mis packed": Row(mis("packed")),
        "mis auto": Row(mis("auto")),
        "mis auto, warm": Row(mis("auto"), stays_warm=True),
        "mis serial": Row(mis("serial"), repeats_query=True),
        "torch shared cache": Row(torch),
        "torch batched": Row(lambda: torch().otherwise("batched"), repeats_query=True),
        "torch serial": Row(lambda: torch().otherwise("serial"), repeats_query=True),
        "llama.cpp": Row(lambda: make_target("llama.cpp", model=path)),
        "vllm": Row(lambda: make_target("vllm-cpu", model=path)),
    }


def counted_operations(config: ModelConfig, query: int, items: int, length: int, labels: int) -> float:
    """Return the floating-point operations that scoring needs at least; a multiplication and an addition are two."""
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv, rest = config.embed * (heads + 2 * kv_heads), heads * config.embed + 3 * config.embed * config.mlp
    tokens, scored = query + items * length, items
    weights = tokens * config.layers * qkv + (tokens * (config.layers - 1) + scored) * rest
    keys = query * (query + 1) / 2 + items * (length * query + length * (length + 1) / 2)
    return 2.0 * weights + 4.0 * config.layers * heads * keys + 2.0 * scored * labels * config.embed


def product_rate(dtype: str, rows: int = 1280, depth: int = 1024, columns: int = 6144, repeats: int = 5) -> float:
    """Return PyTorch's best operations per second for a product, by default that of the limit."""
    import torch

    a, b = (torch.randn(*shape).to(getattr(torch, dtype)) for shape in ((rows, depth), (depth, columns)))
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return 2 * rows * depth * columns / min(seconds)


def faster_type() -> str:
    """Return the type that this CPU multiplies faster: without its own instructions bfloat16 takes minutes."""
    return max(("bfloat16", "float32"), key=lambda dtype: product_rate(dtype, 256, 256, 256))


def measure(target: Target, workload: Workload, stays_warm: bool) -> tuple[float, Scores]:
    """Return items per second and label softmaxes of one run."""
    if not stays_warm:
        target.forget()
    began = time.perf_counter()
    scores = target.score(workload).scores
    return workload.num_items / (time.perf_counter() - began), scores


def compare(options: argparse.Namespace) -> dict[str, object]:
    """Run everything; return the report."""
    path = Path(options.model)
    if not path.exists():
        tiny_checkpoint(path, **SHAPES[options.shape])
    config = read_model_config(path)
    name = f"canonical-{options.query}-{options.items}-{LENGTH}"
    whole = replace(build_workload(name).within(config.vocab_size), apply_softmax=True)
    few = replace(whole, items=whole.items[: options.slow_items])
    targets: dict[str, tuple[Row, Target]] = {}
    rows: dict[str, dict[str, object]] = {}
    for each, row in rows_of(path).items():
        if options.targets and each not in options.targets:
            continue
        try:
            targets[each] = row, row.make()
        except TargetUnavailable as reason:
            rows[each] = {"unavailable": str(reason)}
    product = faster_type()
    rates: list[float] = [product_rate(product)]
    found: dict[str, list[float]] = {each: [] for each in targets}
    scores: dict[str, Scores] = {}
    for _ in range(options.rounds):
        for each, (row, target) in targets.items():
            speed, scores[each] = measure(target, few if row.repeats_query else whole, row.stays_warm)
            found[each].append(speed)
            rates.append(product_rate(product))
            sys.stderr.write(f"{each}: {speed:.2f} items/s, product {rates[-1] / 1e9:.0f} GFLOP/s\n")
    limit_s = counted_operations(config, options.query, options.items, LENGTH, LABELS) / statistics.median(rates)
    limit = options.items / limit_s
    reference = scores.get("mis prefill_extend")
    for each, speeds in found.items():
        speed = statistics.median(speeds)
        rows[each] = {"items_per_second": speed, "share_of_limit": speed / limit, "rounds": speeds}
        if reference is not None:
            difference = float(np.abs(scores[each] - reference[: len(scores[each])]).max())
            rows[each] |= {"largest_difference": difference, "eligible": difference <= TOLERANCE}
    for _, target in targets.values():
        target.close()
    return {
        "workload": {"name": name, "sha256": whole.sha256, "slow_items": options.slow_items},
        "limit_items_per_second": limit,
        "product_dtype": product,
        "product_gflops": [rate / 1e9 for rate in rates],
        "targets": rows,
        "environment": environment().model_dump(mode="json"),
    }


def table(report: dict[str, object]) -> str:
    """Return the report as Markdown."""
    rows: dict[str, dict] = report["targets"]  # type: ignore[assignment]

    def ratio(row: dict, to: str) -> str:
        other = rows.get(to, {}).get("items_per_second")
        return f"{row['items_per_second'] / other:.2f}" if other else "-"

    lines = [
        f"limit: {report['limit_items_per_second']:.1f} items/s ({report['product_dtype']})",
        "",
        "| target | items/s | share of limit | x llama.cpp | x serial | largest difference |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "unavailable" in row:
            lines.append(f"| {name} | cannot run: {row['unavailable']} | | | | |")
            continue
        cells = [f"{row['items_per_second']:.2f}", f"{row['share_of_limit']:.2f}"]
        cells += [ratio(row, "llama.cpp"), ratio(row, "mis serial"), f"{row.get('largest_difference', 0):.4f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the command line, run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of the checkpoint, made if it is not there")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=sorted(SHAPES), help="shape of a folder that is made")
    parser.add_argument("--query", type=int, default=QUERY)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--slow-items", type=int, default=4, help="items of the targets that repeat the query")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--targets", nargs="+", help="only these")
    parser.add_argument("--json", help="also write the report to this file")
    options = parser.parse_args()
    report = compare(options)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(table(report))


if __name__ == "__main__":
    main()
