"""Every fault of one file: of its form, of its schema, and of its fields among themselves."""

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mis_bench.artifacts.base import Artifact, kinds
from mis_bench.artifacts.comparison import Comparison
from mis_bench.artifacts.parts import unordered
from mis_bench.checking.comparisons import comparison_faults
from mis_bench.environment import Environment
from mis_bench.statistics import Interval, Latency

KNOWN_NAMES = ("run.json", "trace.json", "stress.json", "matrix_results.json", "run_metadata.json", "validation.json")
"""Names that only artifacts have; other JSON files in a folder may be something else."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in a file.

    Attributes:
        path: The file.
        schema: Name of its schema, if it has a known one.
        faults: One sentence each.
        artifact: What it holds, if it keeps to its schema.
    """

    path: Path
    schema: str | None
    faults: tuple[str, ...]
    artifact: Artifact | None = None


def check_file(path: Path) -> Checked:
    """Check one artifact.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        fields: Any = json.loads(path.read_bytes().decode(), parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        return Checked(path, None, (f"is not JSON: {error}",))
    known = kinds()
    name = fields.get("schema_version") if isinstance(fields, dict) else None
    kind = known.get(name) if isinstance(name, str) else None
    if kind is None:
        return Checked(path, None, (f"schema_version must be one of {', '.join(sorted(known))}",))
    try:
        artifact = kind.model_validate(fields)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}"
            for each in error.errors(include_url=False, include_input=False)
        ]
        return Checked(path, kind.SCHEMA, tuple(faults))
    recomputed = comparison_faults(artifact) if isinstance(artifact, Comparison) else ()
    return Checked(path, kind.SCHEMA, (*artifact.inconsistencies(), *impossible(artifact), *recomputed), artifact)


def impossible(part: object, where: str = "") -> Iterator[str]:
    """Yield what can be in no kind of artifact: percentiles out of order, intervals upside down, times to come.

    Args:
        part: An artifact, or anything in one.
        where: Path to it.
    """
    if isinstance(part, Latency):
        yield from (f"{where}{fault}" for fault in unordered(part, "p50_ms", "p95_ms", "p99_ms"))
    elif isinstance(part, Interval):
        yield from (f"{where}{fault}" for fault in unordered(part, "low", "high"))
    elif isinstance(part, Environment):
        if part.timestamp > datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5):
            yield f"{where}timestamp is {part.timestamp.isoformat()}, in the future"
    elif isinstance(part, BaseModel):
        for name in type(part).model_fields:
            yield from impossible(getattr(part, name), f"{where}{name}.")
    elif isinstance(part, dict | list):
        for key, each in part.items() if isinstance(part, dict) else enumerate(part):
            yield from impossible(each, f"{where}{key}.")


def is_artifact(path: Path) -> bool:
    """Whether a JSON file claims to be an artifact, or has the name of one.

    Raises:
        OSError: the file cannot be read.
    """
    if path.name in KNOWN_NAMES or path.name.removeprefix("confirm_").startswith("chunk_"):
        return True
    try:
        fields = json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError):
        return True  # broken JSON beside artifacts is a fault
    return isinstance(fields, dict) and bool({"schema_version", "generated_by", "environment"} & fields.keys())


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice in an object")
    return fields
