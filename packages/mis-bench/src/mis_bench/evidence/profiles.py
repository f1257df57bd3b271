"""Whether a profile has the requests that it planned, its traces, and the sums over them."""

import gzip
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from mis_bench.artifact import ArtifactError, Part, read_artifact
from mis_bench.evidence.asked import workload_faults
from mis_bench.evidence.summaries import MOST, differences
from mis_bench.manifest import MANIFEST, Kind, Manifest
from mis_bench.profile.breakdown import TraceSums, sums_of
from mis_bench.profile.records import (
    PROFILE,
    CallCount,
    DeviceTime,
    OperationTime,
    PlannedRequests,
    Profile,
    ProfileError,
    Slice,
)
from mis_bench.profile.trace import DeviceTrace, read_trace

_CHUNK = 1 << 20


def profile_faults(folder: Path, _kind: Kind) -> Iterator[str]:
    """Yield what is wrong with a profile, whatever its digest is; raises `ArtifactError`."""
    found = read_artifact(folder / PROFILE)
    if not isinstance(found, Profile):
        raise ArtifactError(f"{folder / PROFILE} is not a {Profile.SCHEMA}")
    yield from _named(found)
    broken = list(_broken(folder, found))
    yield from broken
    for number, point in enumerate(found.points):
        yield from workload_faults(f"{PROFILE}: points.{number}.workload", point.workload, None)
    if found.is_old:
        return
    if (folder / MANIFEST).exists():
        manifest = read_artifact(folder / MANIFEST)
        listed = {each.path for each in manifest.files} if isinstance(manifest, Manifest) else set[str]()
        for name in sorted(set(found.files) - listed):
            yield f"{MANIFEST}: files does not list {name}, which {PROFILE} names"
    if found.planned is None:
        yield f"{PROFILE}: planned is missing"
        return
    yield from _counted(found, found.planned)
    if not broken:
        yield from islice(_summed(folder, found, found.planned), MOST)


def _named(found: Profile) -> Iterator[str]:
    """Yield which files the scenario must have and does not name."""
    if found.scenario == "memory":
        if [report.when for report in found.memory] != ["loaded", "served"]:
            yield f"{PROFILE}: memory must have what was loaded and what was served"
        return
    for ending in (".xplane.pb", ".trace.json.gz"):
        if not any(name.endswith(ending) for name in found.traces):
            yield f"{PROFILE}: traces has no *{ending}"


def _broken(folder: Path, found: Profile) -> Iterator[str]:
    """Yield which of the named files are missing, empty or cut."""
    for name in found.files:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{PROFILE}: {name} is not a file below the folder"
        elif not path.is_file():
            yield f"{name}: it is missing, and {PROFILE} names it"
        elif not path.stat().st_size:
            yield f"{name}: it is empty"
        elif not name.endswith(".xplane.pb"):  # those are read whole, later
            try:
                with gzip.open(path) as file:
                    while file.read(_CHUNK):
                        pass
            except (OSError, EOFError, zlib.error) as error:
                yield f"{name}: it is broken: {error}"


def _counted(found: Profile, planned: PlannedRequests) -> Iterator[str]:
    names = [point.workload.name for point in found.points]
    if names != planned.workloads:
        yield f"{PROFILE}: points are of {', '.join(names) or 'nothing'}, not of {', '.join(planned.workloads)}"
    for number, point in enumerate(found.points):
        for field in ("timed", "profiled"):
            there, wanted = len(getattr(point, field)), getattr(planned, field)
            if there != wanted:
                yield f"{PROFILE}: points.{number}.{field} has {there} requests, but {wanted} were planned"
    if found.scenario != "memory" and not planned.profiled:
        yield f"{PROFILE}: planned.profiled is 0, but the scenario {found.scenario} has a trace"


class _Sums(Part):
    """What is stored of the sums over a trace."""

    points: list[DeviceTime | None]
    device: DeviceTime | None
    stages: list[Slice]
    operations: list[OperationTime]
    host: list[Slice]
    calls: list[CallCount]

    @classmethod
    def of(cls, sums: TraceSums) -> "_Sums":
        return cls(
            points=sums.points, device=sums.device, stages=sums.stages, operations=sums.operations, host=sums.host,
            calls=sums.calls,
        )  # fmt: skip


def _summed(folder: Path, found: Profile, planned: PlannedRequests) -> Iterator[str]:
    """Yield which sums are not those of the trace."""
    xplanes = [name for name in found.traces if name.endswith(".xplane.pb")]
    try:
        trace = read_trace(folder / xplanes[0]) if xplanes else DeviceTrace([], [])
    except ProfileError as error:
        yield str(error).removeprefix(f"{folder}/")
        return
    sums = sums_of(trace, len(found.points), planned.profiled)
    asked = sum(len(point.profiled) for point in found.points)
    if len(sums.requests) != asked and (sums.requests or found.target.backend == "mis-engine"):
        yield f"{xplanes[0] if xplanes else PROFILE}: it has {len(sums.requests)} marked requests, not {asked}"
        return
    stored = _Sums(
        points=[point.device for point in found.points], device=found.device, stages=found.stages,
        operations=found.operations, host=found.host, calls=found.calls,
    )  # fmt: skip
    yield from differences(PROFILE, stored, _Sums.of(sums), by="the trace makes")
