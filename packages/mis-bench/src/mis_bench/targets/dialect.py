"""What the dialects of servers share."""

import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mis_bench.targets.base import CallFailed, Reply, Scores, fitting
from mis_bench.targets.connection import Connection
from mis_bench.targets.options import is_secret
from mis_bench.workload import Workload

Option = str | int | float | bool | None

PROBE = Workload("probe", np.array([1, 2, 3], np.int32), (np.array([4], np.int32),), np.array([1, 2], np.int32), True)
"""A tiny request; its ids are in every vocabulary."""


class Dialect:
    """How one kind of server is asked.

    Attributes:
        BACKEND: Name for artifacts.
        OPTIONS: Options it takes, beyond those of every server.

    Args:
        connection: To the server.
        model: Name of the served model.
        options: Those of `OPTIONS` that were given.
        directory: The checkpoint that is served, if it can be read here.
    """

    BACKEND: ClassVar[str]
    OPTIONS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, connection: Connection, model: str, options: dict[str, str], directory: Path | None) -> None:
        self.connection, self.model, self.options, self.directory = connection, model, options, directory

    def score(self, workload: Workload, *, timeout_s: float | None = None) -> Reply:
        """Score a workload.

        Raises:
            CallFailed: there is no answer, or not the right one.
        """
        raise NotImplementedError

    def probe(self, timeout_s: float) -> None:
        """Ask for something tiny; raises `CallFailed`."""
        self.score(PROBE, timeout_s=timeout_s)

    def forget(self) -> None:
        """Make the server compute the next query anew.

        Raises:
            CallFailed: `rejected` if there is no way, as here; another reason if the server refused.
        """
        raise CallFailed(
            "rejected",
            f"The target {self.BACKEND} knows no way to forget a query, so only new ones are cold.",
        )

    def details(self) -> dict[str, Any]:
        """Return what the server tells of itself: `dtype`, `version`, and `options`, plain values by name."""
        return {}

    def counts(self) -> dict[str, float]:
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


class Salt:
    """A cache salt that changes when the cache should be forgotten. Thread-safe."""

    def __init__(self) -> None:
        self._number, self._lock = 0, threading.Lock()
        self._prefix = np.random.default_rng().bytes(8).hex()  # no earlier run used it

    def change(self) -> None:
        """Take another salt."""
        with self._lock:
            self._number += 1

    @property
    def field(self) -> dict[str, str]:
        """The field of a request."""
        return {"cache_salt": f"{self._prefix}-{self._number}"}


def plain(settings: Any) -> dict[str, Option]:
    """Return the settings that are plain values; never keys, which some servers tell."""
    if not isinstance(settings, dict):
        return {}
    return {name: value for name, value in settings.items() if isinstance(value, Option) and not is_secret(name)}
