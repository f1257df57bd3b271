"""Two profiles beside each other: which stages take another share of the time than before."""

from collections.abc import Iterator
from typing import NamedTuple

from mis_bench.profile.records import Profile
from mis_bench.table import Table


class StageChange(NamedTuple):
    """A stage's share of the time of all operations, in %, in two profiles; 0 where it did not run."""

    stage: str
    before: float
    after: float

    @property
    def points(self) -> float:
        """By how many percentage points the share grew."""
        return self.after - self.before


def unlike(before: Profile, after: Profile) -> Iterator[str]:
    """Yield what keeps two profiles from being compared: other requests, another model or other hardware."""
    for name, profile in (("first", before), ("second", after)):
        if not profile.stages:
            yield f"the {name} has no time by stage"
    for what, then, now in (
        ("scenario", before.scenario, after.scenario),
        ("workloads", _workloads(before), _workloads(after)),
        ("model", *_models(before, after)),
        ("dtype", before.target.dtype, after.target.dtype),
        ("backend", before.target.backend, after.target.backend),
        ("hardware", before.environment.hardware, after.environment.hardware),
    ):
        if then != now:
            yield f"{what} was {then} and is {now}"


def changes(before: Profile, after: Profile) -> list[StageChange]:
    """Return every stage of either profile, those of the later one first."""
    shares = [{stage.name: 100 * each.share(stage) for stage in each.stages} for each in (before, after)]
    names = dict.fromkeys([*shares[1], *shares[0]])
    return [StageChange(name, *(those.get(name, 0.0) for those in shares)) for name in names]


def table(changed: list[StageChange], most_points: float) -> Table:
    """Describe what changed; a share that moved by more than so many points is said to have moved."""
    columns = {
        "stage": lambda each: each.stage,
        "before %": lambda each: each.before,
        "after %": lambda each: each.after,
        "points": lambda each: f"{each.points:+.1f}",
        "": lambda each: "moved" if abs(each.points) > most_points else None,
    }
    return Table.of("Shares of the time of all operations", changed, columns)


def made(profile: Profile) -> str:
    """Return when, at which commit and with which versions a profile was made."""
    environment = profile.environment
    commit = environment.commit[:8] if environment.commit else "an unknown commit"
    versions = " ".join(f"{name} {version}" for name, version in profile.target.versions.items())
    return f"{environment.timestamp:%Y-%m-%d %H:%M} UTC, {commit}, {environment.hardware}, {versions}"


def _workloads(profile: Profile) -> str:
    return ", ".join(f"{point.workload.name} ({point.workload.sha256[:8]})" for point in profile.points)


def _models(before: Profile, after: Profile) -> tuple[str | None, str | None]:
    """Return the models' checksums, or their names where one has no checksum."""
    digests = before.target.model_sha256, after.target.model_sha256
    return digests if all(digests) else (before.target.model, after.target.model)
