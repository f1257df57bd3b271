"""How one kind of server is asked: what a dialect describes, and what dialects share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from mis_bench.targets.base import CallFailed, Reply, Scores, fitting
from mis_bench.targets.client import Client
from mis_bench.targets.options import Declared, is_secret
from mis_bench.workload import Workload

Plain = str | int | float | bool | None
Json = dict[str, Any]

TOLD_WITHIN_S = 5.0
"""Within this time a server must tell of itself."""

PROBE = Workload("probe", np.array([1, 2, 3], np.int32), (np.array([4], np.int32),), np.array([1, 2], np.int32), True)
"""A tiny request; its ids are in every vocabulary."""


class Dialect(ABC):
    """How one kind of server is asked.

    Attributes:
        BACKEND: Name for results.
        PATH: Of requests.
        OPTIONS: Options it takes, beyond those of every server.
        LAYOUTS: Whether requests may say how they are laid out.
        forgets: How the server is made to compute the next query anew: by another `cache_salt` in requests, by
            `POST /flush_cache`, or not at all. Final once `details` was asked for.
        admin_key: For the flush, where it takes another key.

    Args:
        options: Values of `OPTIONS`.
        directory: The checkpoint that is served, if it can be read here.

    Raises:
        TargetUnavailable: the options do not fit each other, or something that they need is missing.
    """

    BACKEND: ClassVar[str]
    PATH: ClassVar[str]
    OPTIONS: ClassVar[Declared] = {}
    LAYOUTS: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any], directory: Path | None) -> None:
        self.forgets: Literal["salt", "flush"] | None = None
        self.admin_key: str | None = None

    @abstractmethod
    def bodies(self, workload: Workload) -> list[Json]:
        """Return the bodies that ask for a workload, without `model`; they are sent one after another."""

    @abstractmethod
    def reply(self, answers: Sequence[Json], workload: Workload) -> Reply:
        """Read the answers to `bodies`.

        Raises:
            CallFailed: `missing_scores` or `shape_mismatch`.
        """

    def check_probe(self, answers: Sequence[Json]) -> None:
        """Check the answers to `PROBE`, as `reply` does."""
        self.reply(answers, PROBE)

    @property
    def why_not_forget(self) -> str:
        """Why `forgets` is None, in one sentence."""
        return f"The target {self.BACKEND} knows no way to forget a query, so only new ones are cold."

    async def details(self, client: Client) -> Json:
        """Return what the server tells of itself: `dtype`, `version`, and `options`, plain values by name.

        Raises:
            CallFailed: it does not.
        """
        return {}

    async def counts(self, client: Client) -> dict[str, float]:
        """Return what it counts beyond its metrics; raises `CallFailed`."""
        return {}


def checked_scores(values: Any, workload: Workload) -> Scores:
    """Return scores as an array.

    Raises:
        CallFailed: `missing_scores` or `shape_mismatch`.
    """
    try:
        scores = np.array(values, np.float64)
    except (TypeError, ValueError):
        items, labels = workload.num_items, len(workload.label_token_ids)
        raise CallFailed("shape_mismatch", f"The scores are no table of {items} items x {labels} labels.") from None
    return fitting(scores, workload)


def in_order(entries: Mapping[int, Any], count: int, what: str) -> list[Any]:
    """Return entries by their index.

    Raises:
        CallFailed: `shape_mismatch`: there is not one for each of `count`.
    """
    if sorted(entries) != list(range(count)):
        raise CallFailed("shape_mismatch", f"The reply has {len(entries)} {what} for {count} items.")
    return [entries[index] for index in range(count)]


def plain(settings: Any) -> dict[str, Plain]:
    """Return the settings that are plain values; never keys, which some servers tell."""
    if not isinstance(settings, dict):
        return {}
    return {name: value for name, value in settings.items() if isinstance(value, Plain) and not is_secret(name)}
