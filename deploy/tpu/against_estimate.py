"""Hold a profile of the canonical request against its estimate: milliseconds of a request, stage by stage.

usage: against_estimate.py PROFILE.json ESTIMATE.json

The first is of `mis-bench profile --scenario kernels`, the second of `mis-bench estimate --requests 1 --json`. Exit
status 1: they are of different workloads, or the profile has no profiled request.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = tuple[str, float, float]

GROUPS = {
    "embed": "embed",
    **dict.fromkeys(("norm", "qkv", "out", "gate_up", "down", "projections and norms", "mlp"), "products and norms"),
    **dict.fromkeys(("norm_rope", "norm and RoPE"), "norm and RoPE"),
    "write_pages": "page writes",
    "attention": "attention",
    **dict.fromkeys(("final_norm", "label_logits", "log_sum_exp", "head"), "head"),
    "exchange": "exchanges",
}
"""The finest parts that both divide a request into, by the names of either; what has none is the rest."""


def compared(profile: dict[str, Any], estimate: dict[str, Any]) -> list[Row]:
    """Return rows of part, measured and estimated milliseconds of a request; the device's busy time comes last.

    Raises:
        ValueError: the documents do not describe the same request.
    """
    (point,) = profile["points"]
    requests, workload = len(point["profiled"]), point["workload"]["name"]
    if workload != estimate["workload"]:
        raise ValueError(f"The profile is of {workload}, the estimate of {estimate['workload']}.")
    if not requests or profile["device"] is None:
        raise ValueError("The profile has no profiled request.")
    measured = _by_group((stage["name"], stage["ms"] / requests) for stage in profile["stages"])
    estimated = _by_group((stage["name"], stage["milliseconds"]) for stage in estimate["stages"])
    names = [name for name in dict.fromkeys((*GROUPS.values(), "rest")) if name in measured or name in estimated]
    rows = [(name, measured.get(name, 0.0), estimated.get(name, 0.0)) for name in names]
    return [*rows, ("all", profile["device"]["busy_ms"] / requests, estimate["milliseconds"])]


def _by_group(stages: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, milliseconds in stages:
        found[GROUPS.get(name, "rest")] += milliseconds
    return found


def line(row: Row) -> str:
    """Return a row of the table; the last column is the part of the measured time that was foreseen."""
    name, measured, estimated = row
    share = f"{estimated / measured:7.0%}" if measured else f"{'':7}"
    return f"{name:20} {measured:10.2f} {estimated:10.2f} {share}"


def main(profile: str, estimate: str) -> None:
    """Print the table."""
    documents = [json.loads(Path(path).read_text(encoding="utf-8")) for path in (profile, estimate)]
    try:
        rows = compared(*documents)
    except ValueError as error:
        sys.exit(str(error))
    table = [f"{'ms a request':20} {'measured':>10} {'estimated':>10}   share", *map(line, rows)]
    sys.stdout.write("\n".join(table) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
