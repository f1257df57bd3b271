"""How a server is asked for a task: where, with which bodies, and how its answers are read."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mis_bench.targets.base import CallFailed, Reply
from mis_bench.workload import Workload

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asking:
    """How a server is asked for a task.

    Attributes:
        path: Of requests.
        bodies: Returns the bodies that ask for a workload, without `model`; they are sent one after another.
        reply: Reads the answers to them; raises `CallFailed`, `missing_scores` or `shape_mismatch`.
    """

    path: str
    bodies: Callable[[Workload], list[Json]]
    reply: Callable[[Sequence[Json], Workload], Reply]


def whole(workload: Workload) -> list[Json]:
    """Return one body: the request as ours takes it."""
    return [workload.request]


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Read a reply; where something is not there, raise `CallFailed`, `missing_scores`, that names what is wanted."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise CallFailed("missing_scores", f"The reply has no {what}.") from None


def in_order(entries: Mapping[int, Any], count: int) -> list[Any]:
    """Return one entry for each of `count` items, by their index; raises `CallFailed`, `shape_mismatch`."""
    if sorted(entries) != list(range(count)):
        raise CallFailed("shape_mismatch", f"The reply has {len(entries)} scores for {count} items.")
    return [entries[index] for index in range(count)]


def cached_tokens(answer: Json) -> int | None:
    """Return how many tokens the server had kept, where its usage tells."""
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens")
