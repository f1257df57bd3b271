"""Results of several runs, put together so that they can be compared as if they were one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mis_bench.artifact import ArtifactError
from mis_bench.gating import Difference, difference
from mis_bench.records import Call, Gate, Limits, Opened, Plan, Record, Results, read_results
from mis_bench.targets.base import Scores


@dataclass(frozen=True, slots=True)
class _Run:
    """Results of one target; `prefix` tells its cases from those of other runs."""

    target: str
    prefix: str
    results: Results

    @property
    def scores(self) -> Scores:
        scores = next((gate.scores for gate in self.results.gates if gate.scores is not None), None)
        if scores is None:
            raise ArtifactError(f"The results of {self.target} have no scores to compare.")
        return np.asarray(scores, np.float64)


def put_together(paths: Sequence[str], reference: str | None, limits: Limits, command: str) -> Results:
    """Put results of one target each together.

    What was measured in separate runs did not take turns, so ratios have unpaired intervals. Scores of a run were
    compared within it; to these differences that of the runs' references is added, which bounds the difference.

    Args:
        paths: Folders, each as `FOLDER` or `NAME=FOLDER`; the name replaces its target's. A target may have several.
        reference: Target that others are held against; None: the first.
        limits: Of scores and the guardrail.
        command: Command line.

    Raises:
        ArtifactError: a folder holds no results of one target with scores, or requests differ.
    """
    runs = [_read(path, number) for number, path in enumerate(paths)]
    names = list(dict.fromkeys(run.target for run in runs))
    first = reference or names[0]
    if len(names) < 2 or first not in names:
        raise ArtifactError(f"Name folders of two targets or more and the reference's; there are {', '.join(names)}.")
    asked = {(part.name, part.sha256) for run in runs for part in [run.results.plan.cases[0].workload]}
    if len(asked) > 1:
        said = ", ".join(f"{workload} {checksum[:12]}" for workload, checksum in sorted(asked))
        raise ArtifactError(f"Different requests cannot be compared: {said}.")
    truth = next(run.scores for run in runs if run.target == first)
    records = [record for run in runs for record in _renamed(run, difference(run.scores, truth))]
    return Results(_plan(runs, first, limits, command), records)


def _read(text: str, number: int) -> _Run:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        name, path = "", text
    results = read_results(Path(path))
    targets = {case.target for case in results.plan.cases}
    if len(targets) > 1:
        raise ArtifactError(f"{path} holds results of {len(targets)} targets; only those of one can be put together.")
    target = name or targets.pop()
    return _Run(target, f"{target} {number + 1}", results)


def _plan(runs: Sequence[_Run], reference: str, limits: Limits, command: str) -> Plan:
    targets = {run.target: run.results.plan.targets[0].model_copy(update={"name": run.target}) for run in runs}
    return runs[0].results.plan.model_copy(
        update={
            "preset": "compare",
            "command": command,
            "reference": reference,
            "limits": limits,
            "took_turns": False,
            "started": min(run.results.plan.started for run in runs),
            "targets": list(targets.values()),
            "cases": [
                case.model_copy(update={"name": f"{run.prefix} {case.name}", "target": run.target})
                for run in runs
                for case in run.results.plan.cases
            ],
            "notes": [note for run in runs for note in run.results.plan.notes] + list(_unlike(runs)),
        }
    )


def _unlike(runs: Sequence[_Run]) -> Iterator[str]:
    """Yield what a reader must know: conditions that were not the same."""
    for field in ("hardware", "commit"):
        values = {run.prefix: getattr(run.results.plan.environment, field) for run in runs}
        if len(set(values.values())) > 1:
            yield f"The runs differ in {field}: " + ", ".join(f"{name} {value}" for name, value in values.items()) + "."


def _renamed(run: _Run, apart: Difference) -> Iterator[Record]:
    for record in run.results.records:
        if isinstance(record, Opened):
            yield record.model_copy(update={"target": run.target})
            continue
        renamed = record.model_copy(update={"case": f"{run.prefix} {record.case}"})
        if isinstance(renamed, Call) or (isinstance(renamed, Gate) and renamed.name == "correctness"):
            renamed = _further(renamed, apart)
        yield renamed


def _further(record: Gate | Call, apart: Difference) -> Gate | Call:
    """Return a record whose differences are larger by that of the references."""
    if record.max_abs is None or record.mean_abs is None:
        return record
    further = {"max_abs": record.max_abs + apart.max_abs, "mean_abs": record.mean_abs + apart.mean_abs}
    return record.model_copy(update=further)
