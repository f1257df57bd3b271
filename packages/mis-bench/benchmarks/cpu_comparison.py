"""Items per second of whole scoring requests on this CPU: MIS's layouts, PyTorch and llama.cpp, in one run.

    python packages/mis-bench/benchmarks/cpu_comparison.py --model FOLDER [--items 500] [--rounds 2] [--json FILE]

FOLDER is made with random weights of Qwen3-0.6B's shape if it does not exist. The workload is
`canonical-2000-500-20`: a query of 2000 tokens, items of 20, labels 9454 and 2753, bfloat16. Every target
computes the query anew in every round (`warm` keeps it in MIS's prefix cache). Rounds of all targets
alternate; medians are reported. A target that cannot run is listed with the reason.

The limit is counted operations over PyTorch's rate for a bfloat16 product of 1280 x 1024 by 1024 x 6144,
taken before and after every measurement. Counted: products with weights for every token once, the last
layer's and the head's as needed by the scored rows only, and both products of attention over the keys
that each token sees.

A target is eligible if its label softmaxes are within 0.02 of those of `prefill_extend`.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from targets import FAST_ITEMS, Scores, Target, Unavailable, Workload, make_targets

from mis_core.models.config import ModelConfig, read_model_config
from mis_testing import tiny_checkpoint
from mis_testing.shapes import SHAPES

QUERY, LENGTH, LABELS = 2000, 20, (9454, 2753)
TOLERANCE = 0.02


def counted_operations(config: ModelConfig, query: int, items: int, length: int, labels: int) -> float:
    """Return the floating-point operations that scoring needs at least; a multiplication and an addition are two."""
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv, rest = config.embed * (heads + 2 * kv_heads), heads * config.embed + 3 * config.embed * config.mlp
    tokens, scored = query + items * length, items
    weights = tokens * config.layers * qkv + (tokens * (config.layers - 1) + scored) * rest
    keys = query * (query + 1) / 2 + items * (length * query + length * (length + 1) / 2)
    return 2.0 * weights + 4.0 * config.layers * heads * keys + 2.0 * scored * labels * config.embed


def product_rate(repeats: int = 5) -> float:
    """Return PyTorch's best operations per second for the bfloat16 product of the limit."""
    import torch

    a, b = torch.randn(1280, 1024).bfloat16(), torch.randn(1024, 6144).bfloat16()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return 2 * 1280 * 1024 * 6144 / min(seconds)


def measure(target: Target, workload: Workload) -> tuple[float, Scores]:
    """Return items per second and label softmaxes of one run."""
    target.forget()
    began = time.perf_counter()
    scores = target.score(workload)
    return len(workload.items) / (time.perf_counter() - began), scores


def compare(options: argparse.Namespace) -> dict[str, object]:
    """Run everything; return the report."""
    path = Path(options.model)
    if not path.exists():
        tiny_checkpoint(path, **SHAPES[options.shape])
    config = read_model_config(path)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size - 1, (options.items, LENGTH))
    labels = tuple(label % config.vocab_size for label in LABELS)
    whole = Workload(rng.integers(0, config.vocab_size - 1, options.query).tolist(), tokens.tolist(), labels)
    targets: dict[str, Target] = {}
    rows: dict[str, dict[str, object]] = {}
    for name, make in make_targets(path).items():
        if options.targets and name not in options.targets:
            continue
        try:
            targets[name] = make()
        except Unavailable as reason:
            rows[name] = {"unavailable": str(reason)}
    rates: list[float] = [product_rate()]
    found: dict[str, list[float]] = {name: [] for name in targets}
    scores: dict[str, Scores] = {}
    for _ in range(options.rounds):
        for name, target in targets.items():
            part = whole if name in FAST_ITEMS else whole.first(options.slow_items)
            speed, scores[name] = measure(target, part)
            found[name].append(speed)
            rates.append(product_rate())
            sys.stderr.write(f"{name}: {speed:.2f} items/s, product {rates[-1] / 1e9:.0f} GFLOP/s\n")
    limit_s = counted_operations(config, options.query, options.items, LENGTH, len(LABELS)) / statistics.median(rates)
    limit = options.items / limit_s
    reference = scores.get("mis prefill_extend")
    for name, speeds in found.items():
        speed = statistics.median(speeds)
        rows[name] = {"items_per_second": speed, "share_of_limit": speed / limit, "rounds": speeds}
        if reference is not None:
            count = len(scores[name])
            rows[name]["largest_difference"] = float(np.abs(scores[name] - reference[:count]).max())
            rows[name]["eligible"] = rows[name]["largest_difference"] <= TOLERANCE
    return {
        "workload": {
            "query": options.query,
            "items": options.items,
            "length": LENGTH,
            "slow_items": options.slow_items,
        },
        "limit_items_per_second": limit,
        "product_gflops": [rate / 1e9 for rate in rates],
        "targets": rows,
        "machine": machine(),
    }


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("jax", "torch", "transformers")},
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def table(report: dict[str, object]) -> str:
    """Return the report as Markdown."""
    rows: dict[str, dict] = report["targets"]  # type: ignore[assignment]

    def ratio(row: dict, to: str) -> str:
        other = rows.get(to, {}).get("items_per_second")
        return f"{row['items_per_second'] / other:.2f}" if other else "-"

    lines = [
        f"limit: {report['limit_items_per_second']:.1f} items/s",
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
