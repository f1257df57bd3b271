"""A folder of results: a plan, and one raw record for each thing that happened.

It holds `plan.json`, written before anything is measured, and `records.jsonl`, to which a line is added as things
happen. Nothing in them is a summary, so nothing in them can contradict another part: throughput, latencies, intervals
and verdicts are in `summary.py`, which computes them anew from the records.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from mis_bench.artifact import ArtifactError, first_fault, naming, read_artifact
from mis_bench.results.plan import Plan
from mis_bench.results.records import Opened, ProductRate, Record, Results

PLAN, RECORDS, SUMMARY = "plan.json", "records.jsonl", "summary.json"
"""Files of a folder of results."""

_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def begin(folder: Path, plan: Plan) -> None:
    """Write a plan into a folder, which is made if need be.

    Raises:
        ArtifactError: the folder holds results already.
        OSError: it cannot be written.
    """
    if (folder / PLAN).exists():
        raise ArtifactError(f"{folder} already holds results.")
    plan.write(folder / PLAN)
    (folder / RECORDS).touch()


def append(folder: Path, records: Iterable[Record]) -> None:
    """Add records to a folder; fields at their defaults are left out, so that lines stay short.

    Raises:
        OSError: they cannot be written.
    """
    fields = ({"kind": record.kind} | record.model_dump(mode="json", exclude_defaults=True) for record in records)
    lines = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in fields).encode()
    with naming(folder / RECORDS), (folder / RECORDS).open("ab", buffering=0) as file:
        before = file.tell()
        try:
            written = file.write(lines)
            while written < len(lines):  # a disk that fills up takes a part first
                written += file.write(lines[written:])
        except BaseException:
            with suppress(OSError):  # all lines or none, so that what was kept can be read
                file.truncate(before)
            raise


def read_plan(folder: Path) -> Plan:
    """Read the plan of a folder; raises `ArtifactError` if it has none."""
    plan = read_artifact(folder / PLAN)
    if not isinstance(plan, Plan):
        raise ArtifactError(f"{folder / PLAN} is not a {Plan.SCHEMA}.")
    return plan


def read_records(folder: Path, plan: Plan) -> list[Record]:
    """Read the records of a plan, one for each line of the file.

    Raises:
        ArtifactError: a line is no record of the plan; names the file and line.
    """
    path = folder / RECORDS
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: {error}") from None
    names = {case.name for case in plan.cases} | {target.name for target in plan.targets}
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            record = _RECORD.validate_json(line)
        except ValidationError as error:
            raise ArtifactError(f"{path}:{number}: {first_fault(error)}") from None
        name = record.target if isinstance(record, Opened | ProductRate) else record.case
        if name not in names:
            raise ArtifactError(f"{path}:{number}: {name} is not in the plan")
        records.append(record)
    return records


def read_results(folder: Path) -> Results:
    """Read a folder.

    Raises:
        ArtifactError: it is no folder of results, or a line is no record of its plan; names the file and line.
    """
    plan = read_plan(folder)
    return Results.of_records(plan, read_records(folder, plan))
