"""The stored figures of earlier compilations, and what counts as a regression."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 0.05
BYTES_PER_TOKEN = 32 * 2**10
"""Most temporaries per new token in the layers of the growth programs: each projection once in float32
and twice in bfloat16, 4096 columns in all. One byte per token pair would exceed it at 32k tokens."""
SMALL_STEP = 16 * 2**20
"""What a step may need however small it is: a layer's weights in another layout."""
ARGUMENT_GROWTH = 4.0
LAUNCHES = "launches"

Figures = dict[str, dict[str, dict[str, int]]]
"""Target, program, figure."""


def figures(results: dict[str, list[dict[str, Any]]]) -> Figures:
    """Keep what is compared: bundles, launches and temporaries."""
    kept: Figures = {}
    for target, rows in results.items():
        for row in rows:
            values = {f"bundles.{kind}": n for kind, n in row.get("bundles", {}).items()}
            values |= {name: row[name] for name in (LAUNCHES, "temporaries") if name in row}
            kept.setdefault(target, {})[row["name"]] = values
    return kept


def load(path: Path) -> Figures:
    """Return the stored figures, or none if there is no file yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def store(path: Path, new: Figures) -> None:
    """Write figures over those of the same targets and programs; keep the others."""
    kept = load(path)
    for target, programs in new.items():
        kept.setdefault(target, {}).update(programs)
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def regressions(old: Figures, new: Figures) -> list[str]:
    """Name every figure that is more than `TOLERANCE` above the stored one; of launches, each that is above it."""
    found = []
    for target, programs in new.items():
        for program, values in programs.items():
            for name, value in values.items():
                before = old.get(target, {}).get(program, {}).get(name)
                tolerance = 0 if name == LAUNCHES else TOLERANCE
                if before is not None and value > before * (1 + tolerance):
                    found.append(f"{target}: {program}: {name} {before} -> {value}")
    return found


def judge(stored: Path, results: dict[str, list[dict[str, Any]]], problems: list[str], *, update: bool) -> int:
    """Compare figures with the stored ones, or store them; print all problems, and return the exit status.

    Args:
        stored: The baseline's file.
        results: What was compiled for each target.
        problems: What was found before.
        update: Store instead of comparing.
    """
    found = figures(results)
    if update:
        store(stored, found)
    else:
        problems = problems + regressions(load(stored), found)
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    print(f"{sum(map(len, results.values()))} programs compiled, {len(problems)} problems")
    return 1 if problems else 0


def superlinear(rows: list[dict[str, Any]]) -> list[str]:
    """Name steps whose arguments or temporaries grow with more than their tokens.

    Temporaries are held against a bound per token: a small step keeps all of them in VMEM, so that a
    ratio of two steps would say nothing.
    """
    steps = sorted((row for row in rows if row["name"].startswith("growth")), key=lambda row: row["tokens"])
    found = [
        f"{row['name']}: temporaries of {row['temporaries']} bytes, over {SMALL_STEP} and {BYTES_PER_TOKEN} a token"
        for row in steps
        if row["temporaries"] > SMALL_STEP + BYTES_PER_TOKEN * row["tokens"]
    ]
    for kind in ("extend", "prefill"):
        same = [row for row in steps if kind in row["name"]]
        for small, large in itertools.pairwise(same):
            if large["arguments"] > ARGUMENT_GROWTH * small["arguments"]:
                found.append(f"{large['name']}: arguments {small['arguments']} -> {large['arguments']} bytes")
    return found
