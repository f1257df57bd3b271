"""Profiles of `mis-bench run`: which configurations are measured, and how often."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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

    def sizes(self, *, dtype: str | None, parameters: int | None) -> Iterator[tuple[int, int, str | None]]:
        """Yield the items and labels of every row, and why it is not measured, for one model and dtype.

        Args:
            dtype: Type of weights, if known.
            parameters: Of the model, if known.
        """
        for labels, batch in itertools.product(self.label_counts, self.batch_sizes):
            skip = None
            if batch > LARGE_BATCH and dtype == "float32" and len(self.dtypes) > 1:
                skip = f"The profile {self.name} measures float32 up to {LARGE_BATCH} items."
            elif batch > LARGE_BATCH and parameters is not None and parameters > LARGE_MODEL:
                skip = f"Models above {LARGE_MODEL:,} parameters are measured up to {LARGE_BATCH} items."
            yield batch, labels, skip


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


def parameter_count(directory: Path) -> int | None:
    """Return the parameters of a checkpoint as its weight files' headers tell; None if there are none to read."""
    total = 0
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total or None
