"""The folder of a mission: what was measured already, and whether it belongs to the same mission."""

from collections.abc import Iterator
from pathlib import Path

from mis_bench.artifacts.base import ArtifactError, read_artifact
from mis_bench.artifacts.matrix import MatrixChunk, MatrixPlan, Phase, RunMetadata
from mis_bench.artifacts.matrix_row import Configuration
from mis_bench.environment import Environment
from mis_bench.targets.base import About

METADATA, MATRIX, LOG = "run_metadata.json", "matrix_results.json", "mission.log"

SWEPT = {"scoring_algorithm", "mask_impl", "multi_item_scoring_chunk_size"}
"""Options that differ between the configurations of a mission."""


class MissionError(Exception):
    """A mission cannot be resumed; one sentence says why and what to do."""


def file_of(folder: Path, phase: Phase, configuration: Configuration) -> Path:
    """Return where a configuration's artifact is: `chunk_32.json`, or `confirm_chunk_32.json`."""
    prefix = "" if phase == "sweep" else "confirm_"
    return folder / f"{prefix}{configuration.name}.json"


def begin(folder: Path, metadata: RunMetadata) -> RunMetadata:
    """Begin a mission, or resume the one that the folder holds.

    Args:
        folder: Of the mission.
        metadata: Of this sitting.

    Returns:
        The mission's metadata: those of the first sitting.

    Raises:
        MissionError: the folder holds another mission.
        OSError: the folder cannot be written.
    """
    path = folder / METADATA
    if not any(folder.glob("*chunk_*.json")):  # nothing was measured yet, by whatever plan
        metadata.write(path)
        return metadata
    if not path.exists():
        raise MissionError(f"{folder} holds measurements without {METADATA}; name another folder with --output.")
    try:
        earlier = read_artifact(path)
    except ArtifactError as error:
        raise MissionError(f"{error}. Name another folder with --output.") from None
    if not isinstance(earlier, RunMetadata):
        raise MissionError(f"{path} is no {RunMetadata.SCHEMA}; name another folder with --output.")
    changed = [*_changes(earlier.plan, metadata.plan), *_moved(earlier.environment, metadata.environment)]
    if changed:
        raise MissionError(
            f"{folder} holds a mission that differs: {'; '.join(changed)}. "
            "Repeat the same command to resume it, or name another folder with --output."
        )
    return earlier


def stored(folder: Path, metadata: RunMetadata, phase: Phase, configuration: Configuration) -> MatrixChunk | None:
    """Return the artifact of a configuration that was measured already, or None.

    One that the target could not run in is to be tried again: a server may have been down.

    Raises:
        MissionError: there is a file, but not of this mission.
    """
    path = file_of(folder, phase, configuration)
    if not path.exists():
        return None
    try:
        chunk = read_artifact(path)
    except ArtifactError as error:
        raise MissionError(f"{error}. Delete the file to measure it again.") from None
    if (
        not isinstance(chunk, MatrixChunk)
        or (chunk.run_id, chunk.phase) != (metadata.run_id, phase)
        or chunk.row.configuration != configuration
    ):
        raise MissionError(f"{path} is not of the mission {metadata.run_id}. Delete the file to measure it again.")
    return None if chunk.target is None else chunk


def same_target(earlier: About, now: About) -> None:
    """Check that a resumed mission asks the target that it began with, options that are swept aside.

    Raises:
        MissionError: another checkpoint, other versions, or our engine with other options.
    """
    fields = ("model_sha256", "backend", "dtype", "versions")
    values = [(field, getattr(earlier, field), getattr(now, field)) for field in fields]
    if now.backend.startswith("mis-"):  # other servers put counts that change among their options
        options = (earlier.options.keys() | now.options.keys()) - SWEPT
        values += [(name, earlier.options.get(name), now.options.get(name)) for name in sorted(options)]
    for name, before, after in values:
        if before != after:
            raise MissionError(
                f"The target changed since the mission began: {name} was {before} and is {after}. "
                "Name another folder with --output."
            )


def _changes(before: MatrixPlan, after: MatrixPlan) -> Iterator[str]:
    for field in MatrixPlan.model_fields:
        old, new = getattr(before, field), getattr(after, field)
        if field == "workload":
            old, new = f"{old.name} {old.sha256[:12]}", f"{new.name} {new.sha256[:12]}"
        if field == "configurations":
            old, new = (" ".join(each.name for each in plan.configurations) for plan in (before, after))
        if old != new:
            yield f"{field} was {old} and is {new}"


def _moved(before: Environment, after: Environment) -> Iterator[str]:
    for field in ("hardware", "commit", "versions", "variables"):
        if getattr(before, field) != getattr(after, field):
            yield f"{field} was {getattr(before, field)} and is {getattr(after, field)}"
