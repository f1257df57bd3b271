"""Profiles of `mis-bench run`: which configurations are measured, and how often."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

QUERY_TOKENS, ITEM_TOKENS = 128, 20
"""Sizes of the requests of all profiles."""

LARGE_MODEL = 2_000_000_000
"""Parameters above which, and float32 in which, only batches up to `LARGE_BATCH` are measured."""

LARGE_BATCH = 16


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile measures.

    Attributes:
        name: On the command line.
        batch_sizes: Items per request.
        label_counts: Labels per item.
        runs: Timed calls of a configuration.
        warmup_runs: Calls before them.
        dtypes: Types of weights, for targets that let one choose; None stands for the target's default.
    """

    name: str
    batch_sizes: tuple[int, ...]
    label_counts: tuple[int, ...]
    runs: int
    warmup_runs: int
    dtypes: tuple[str | None, ...] = (None,)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("smoke", (1, 4, 16), (2, 4), runs=5, warmup_runs=2),
        Profile("standard", (1, 2, 4, 8, 16, 32), (2, 4, 8), runs=20, warmup_runs=5),
        Profile(
            "full", (1, 2, 4, 8, 16, 32, 64), (2, 4, 8, 16), runs=50, warmup_runs=10, dtypes=("bfloat16", "float32")
        ),
    )
}


@dataclass(frozen=True, slots=True)
class RunConfiguration:
    """One row to measure.

    Attributes:
        name: Of the row, without model and dtype.
        workload: Name of the workload.
        cache: Whether calls share their query (`warm`) or not (`cold`).
        skip: Why it is not measured, or None.
    """

    name: str
    workload: str
    cache: Literal["cold", "warm"]
    skip: str | None = None


def configurations(profile: Profile, *, dtype: str | None, parameters: int | None) -> Iterator[RunConfiguration]:
    """Yield the rows of a profile for one model and dtype.

    Args:
        profile: Which.
        dtype: Type of weights, if known.
        parameters: Of the model, if known.
    """
    for labels in profile.label_counts:
        for batch in profile.batch_sizes:
            skip = None
            if batch > LARGE_BATCH and dtype == "float32" and len(profile.dtypes) > 1:
                skip = f"The profile {profile.name} measures float32 up to {LARGE_BATCH} items."
            elif batch > LARGE_BATCH and parameters is not None and parameters > LARGE_MODEL:
                skip = f"Models above {LARGE_MODEL:,} parameters are measured up to {LARGE_BATCH} items."
            name = f"batch-{batch}-labels-{labels}"
            yield RunConfiguration(name, f"profile{labels}-{QUERY_TOKENS}-{batch}-{ITEM_TOKENS}@{labels}", "cold", skip)


def named(workloads: tuple[str, ...]) -> Iterator[RunConfiguration]:
    """Yield two rows for every workload: with another query in each call, and with the same."""
    for workload in dict.fromkeys(workloads):
        yield RunConfiguration(f"{workload}-cold", workload, "cold")
        yield RunConfiguration(f"{workload}-warm", workload, "warm")


def parameter_count(directory: Path) -> int | None:
    """Return the parameters of a checkpoint as its weight files' headers tell; None if there are none to read."""
    total = 0
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                size = 1
                for side in tensor["shape"]:
                    size *= side
                total += size
    return total or None
