"""Profiles of `mis-bench run`: which sizes are measured, and how often."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

QUERY_TOKENS, ITEM_TOKENS = 128, 20
"""Sizes of the requests of all profiles."""

LARGE_MODEL, LARGE_BATCH = 2_000_000_000, 16
"""Models of more parameters, and float32 beside another type, are measured up to so many items."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile measures.

    Attributes:
        batch_sizes: Items per request.
        label_counts: Labels per item.
        runs: Timed requests of a row.
        warmup_runs: Requests before them.
        dtypes: Types of weights, for targets that let one choose; None stands for the target's default.
    """

    batch_sizes: tuple[int, ...]
    label_counts: tuple[int, ...]
    runs: int
    warmup_runs: int
    dtypes: tuple[str | None, ...] = (None,)

    def sizes(self, *, dtype: str | None, parameters: int | None) -> Iterator[tuple[int, int, str | None]]:
        """Yield labels, items, and why they are not measured, if so, with weights of a type and so many parameters."""
        for labels, items in product(self.label_counts, self.batch_sizes):
            skip = None
            if items > LARGE_BATCH and dtype == "float32" and len(self.dtypes) > 1:
                skip = f"The profile measures float32 up to {LARGE_BATCH} items."
            elif items > LARGE_BATCH and parameters is not None and parameters > LARGE_MODEL:
                skip = f"Models above {LARGE_MODEL:,} parameters are measured up to {LARGE_BATCH} items."
            yield labels, items, skip


PROFILES = {
    "smoke": Profile((1, 4, 16), (2, 4), runs=5, warmup_runs=2),
    "standard": Profile((1, 2, 4, 8, 16, 32), (2, 4, 8), runs=20, warmup_runs=5),
    "full": Profile(
        (1, 2, 4, 8, 16, 32, 64), (2, 4, 8, 16), runs=50, warmup_runs=10, dtypes=("bfloat16", "float32")
    ),
}  # fmt: skip


def parameter_count(directory: Path) -> int | None:
    """Return the parameters of a checkpoint as its weight files' headers tell; None if there are none to read."""
    total = 0
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total or None
