"""The stored figures of earlier compilations, and what counts as a regression."""

import json
from pathlib import Path
from typing import Any

TOLERANCE = 0.05
MAX_TEMPORARIES_GROWTH = 4.5
"""Temporaries may grow this much when tokens grow fourfold; sixteenfold would be a score matrix."""

Figures = dict[str, dict[str, dict[str, int]]]
"""Target, program, figure."""


def figures(results: dict[str, list[dict[str, Any]]]) -> Figures:
    """Keep what is compared: bundles and temporaries."""
    kept: Figures = {}
    for target, rows in results.items():
        for row in rows:
            values = {f"bundles.{kind}": n for kind, n in row.get("bundles", {}).items()}
            kept.setdefault(target, {})[row["name"]] = {**values, "temporaries": row["temporaries"]}
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
    """Name every figure that is more than `TOLERANCE` above the stored one."""
    found = []
    for target, programs in new.items():
        for program, values in programs.items():
            for name, value in values.items():
                before = old.get(target, {}).get(program, {}).get(name)
                if before is not None and value > before * (1 + TOLERANCE):
                    found.append(f"{target}: {program}: {name} {before} -> {value}")
    return found


def superlinear(rows: list[dict[str, Any]]) -> list[str]:
    """Name steps whose arguments or temporaries grow faster than their tokens."""
    found = []
    for kind in ("extend", "prefill"):
        steps = sorted((row for row in rows if row["name"].startswith(f"growth {kind}")), key=lambda row: row["tokens"])
        for small, large in zip(steps, steps[1:], strict=False):
            for name in ("arguments", "temporaries"):
                if large[name] > MAX_TEMPORARIES_GROWTH * max(small[name], 2**20):
                    found.append(f"{large['name']}: {name} {small[name]} -> {large[name]} bytes")
    return found
