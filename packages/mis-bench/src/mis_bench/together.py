"""Results of several runs, put together so that they can be compared as if they were one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mis_bench.artifact import ArtifactError
from mis_bench.gating import Difference, difference
from mis_bench.records import Call, Gate, Limits, Opened, Plan, Record, Results, read_results
from mis_bench.targets.base import Scores


def put_together(paths: Sequence[str], reference: str | None, limits: Limits, command: str) -> Results:
    """Put results of one target each together.

    What was measured in separate runs did not take turns, so ratios have unpaired intervals. Scores of a run were
    compared within it; to these differences that of the runs' references is added, which bounds the difference.

    Args:
        paths: Folders, each as `FOLDER` or `NAME=FOLDER`; the name replaces its target's.
        reference: Target that others are held against; None: the first.
        limits: Of scores and the guardrail.
        command: Command line.

    Raises:
        ArtifactError: a folder holds no results of one target with scores, names repeat, or requests differ.
    """
    named = dict(_named(path) for path in paths)
    if len(named) < len(paths) or len(named) < 2:
        raise ArtifactError("Name at least two folders, of targets with different names; NAME=FOLDER renames one.")
    first = reference or next(iter(named))
    if first not in named:
        raise ArtifactError(f"{first!r} is no target; there are {', '.join(named)}.")
    asked = {name: (part.name, part.sha256) for name, each in named.items() for part in [each.plan.cases[0].workload]}
    if len(set(asked.values())) > 1:
        said = ", ".join(f"{name}: {workload} {checksum[:12]}" for name, (workload, checksum) in asked.items())
        raise ArtifactError(f"Different requests cannot be compared: {said}.")
    truth = _truth(first, named[first])
    records = [
        record for name, each in named.items() for record in _renamed(name, each, difference(_truth(name, each), truth))
    ]
    return Results(_plan(named, first, limits, command), records)


def _named(text: str) -> tuple[str, Results]:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        name, path = "", text
    results = read_results(Path(path))
    targets = {case.target for case in results.plan.cases}
    if len(targets) > 1:
        raise ArtifactError(f"{path} holds results of {len(targets)} targets; only those of one can be put together.")
    return name or targets.pop(), results


def _truth(name: str, results: Results) -> Scores:
    scores = next((gate.scores for gate in results.gates if gate.scores is not None), None)
    if scores is None:
        raise ArtifactError(f"The results of {name} have no scores to compare.")
    return np.asarray(scores, np.float64)


def _plan(named: dict[str, Results], reference: str, limits: Limits, command: str) -> Plan:
    plans = {name: each.plan for name, each in named.items()}
    first = plans[reference]
    return first.model_copy(
        update={
            "preset": "compare",
            "command": command,
            "reference": reference,
            "limits": limits,
            "took_turns": False,
            "started": min(plan.started for plan in plans.values()),
            "targets": [plan.targets[0].model_copy(update={"name": name}) for name, plan in plans.items()],
            "cases": [
                case.model_copy(update={"name": f"{name} {case.name}", "target": name})
                for name, plan in plans.items()
                for case in plan.cases
            ],
            "notes": [note for plan in plans.values() for note in plan.notes] + list(_differing(named)),
        }
    )


def _differing(named: dict[str, Results]) -> Iterator[str]:
    """Yield what a reader must know: conditions that were not the same."""
    for field in ("hardware", "commit"):
        values = {name: getattr(each.plan.environment, field) for name, each in named.items()}
        if len(set(values.values())) > 1:
            yield f"The runs differ in {field}: " + ", ".join(f"{name} {value}" for name, value in values.items()) + "."


def _renamed(name: str, results: Results, apart: Difference) -> Iterator[Record]:
    for record in results.records:
        if isinstance(record, Opened):
            yield record.model_copy(update={"target": name})
            continue
        renamed = record.model_copy(update={"case": f"{name} {record.case}"})
        if isinstance(renamed, Call) or (isinstance(renamed, Gate) and renamed.name == "correctness"):
            renamed = _further(renamed, apart)
        yield renamed


def _further(record: Gate | Call, apart: Difference) -> Gate | Call:
    """Return a record whose differences are larger by that of the references."""
    if record.max_abs is None or record.mean_abs is None:
        return record
    return record.model_copy(
        update={"max_abs": record.max_abs + apart.max_abs, "mean_abs": record.mean_abs + apart.mean_abs}
    )
