"""Timed requests of one target at one chunk size and setting, and their figures."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from mis_bench.artifacts.comparison import Figures, Request
from mis_bench.comparison.ratios import items_per_usd, ratio_interval
from mis_bench.statistics import Interval, Latency, interval


@dataclass(frozen=True, slots=True)
class Series:
    """Requests of one target at one chunk size and setting.

    Attributes:
        target: Whose.
        chunk_items: Items that the client sends in one call.
        items: Items of a request.
        seconds: Of each request, by round; None of one that failed.
        failures: Reasons of failures and their counts.
        first_seconds: Of the warm-up request, if it succeeded.
        server_chunk_items: Items that the server computes in one step, where it was told; 0 if it decides.
        setting: The target's setting in words, where several were measured.
    """

    target: str
    chunk_items: int
    items: int
    seconds: tuple[float | None, ...]
    failures: dict[str, int] = field(default_factory=dict)
    first_seconds: float | None = None
    server_chunk_items: int = 0
    setting: str = ""

    @classmethod
    def of(cls, requests: Iterable[Request], target: str, chunk_items: int, items: int) -> Self:
        """Return the series of a target and chunk size among requests, of which round 0 warmed up."""
        mine = [each for each in requests if (each.target, each.chunk_items) == (target, chunk_items)]
        timed = [each for each in mine if each.round > 0]
        first = next((each for each in mine if each.round == 0), None)
        return cls(
            target=target,
            chunk_items=chunk_items,
            items=items,
            seconds=tuple(None if each.failure else each.seconds for each in timed),
            failures=dict(Counter(each.failure for each in timed if each.failure)),
            first_seconds=None if first is None or first.failure else first.seconds,
        )

    @property
    def speeds(self) -> list[float]:
        """Items per second of the requests that succeeded."""
        return [self.items / seconds for seconds in self.seconds if seconds is not None]

    @property
    def median_speed(self) -> float:
        """Median of `speeds`; 0 if there are none."""
        return interval(self.speeds).value if self.speeds else 0.0

    def figures(self, reference: "Series | None", *, paired: bool, hourly_cost_usd: float | None) -> Figures:
        """Summarise.

        Args:
            reference: What the ratio is relative to, if there is such a thing.
            paired: Whether both were measured in the same rounds.
            hourly_cost_usd: What an hour of the hardware costs, if known.
        """
        speed = interval(self.speeds) if self.speeds else None
        latency = Latency.of([1e3 * seconds for seconds in self.seconds if seconds is not None])
        timed = len(self.seconds)
        return Figures(
            target=self.target,
            chunk_items=self.chunk_items,
            server_chunk_items=self.server_chunk_items,
            setting=self.setting,
            items=self.items,
            success_rate=len(self.speeds) / timed if timed else 0.0,
            failures=self.failures,
            items_per_second=speed,
            latency=latency,
            ratio=None if reference is None else self._ratio(reference, paired),
            first_run_penalty=self.first_seconds * 1e3 / latency.p50_ms if self.first_seconds and latency else None,
            items_per_usd=items_per_usd(speed.value if speed else None, hourly_cost_usd),
        )

    def _ratio(self, reference: "Series", paired: bool) -> Interval | None:
        if not self.speeds or not reference.speeds:
            return None
        if reference is self:
            return Interval(value=1, low=1, high=1, confidence=None)
        if not paired:
            return ratio_interval(self.speeds, reference.speeds, paired=False)
        both = [pair for pair in zip(self.seconds, reference.seconds, strict=True) if None not in pair]
        if not both:
            return None
        mine, theirs = zip(*((self.items / a, reference.items / b) for a, b in both if a and b), strict=True)
        return ratio_interval(mine, theirs, paired=True)
