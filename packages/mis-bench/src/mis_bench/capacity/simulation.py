"""A discrete-event simulation of replicas behind consistent hashing with bounded load, by SimPy.

Requests arrive by themselves (a Poisson process) or are asked by callers that wait for each answer. HAProxy's rule
(`mis_bench.capacity.ring`) chooses a replica; one may be lost, and is found out by the first request that it refuses,
which is sent on to another, or by a health check if none comes before.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import simpy
from jaxtyping import Float64, Int64, Shaped

from mis_bench.capacity.plan import Lost, Simulated
from mis_bench.capacity.queries import draw_queries
from mis_bench.capacity.replica import ReplicaShape, RequestShape, SimulatedReplica
from mis_bench.capacity.ring import Ring
from mis_core.scheduler.plan import PAGE_SIZE

MAX_REPLICAS = 1000

DETECTION_S = 2.0
"""Until health checks take a replica away: two of them, one a second, in `deploy/haproxy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A replica that dies.

    Attributes:
        after_requests: It dies when so many requests have arrived.
        replica: Its number.
        detection_s: Seconds until a health check takes it off the ring, if no request was refused before.
        returns_s: Seconds from its death until it is there again, with nothing cached; infinite: it stays away.
    """

    after_requests: int
    replica: int = 0
    detection_s: float = 3.0
    returns_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is simulated.

    Attributes:
        replicas: How many, at most `MAX_REPLICAS`.
        replica: What each has and takes.
        request: Tokens of every request.
        rate: Requests a second that arrive by themselves; 0: callers ask, each when its last request is answered.
        callers: How many of them, if rate is 0.
        think_s: Seconds between an answer and the caller's next request.
        weight: Weight of each replica; more is more points on the ring, and shares that are more even.
        balance_factor: HAProxy's `hash-balance-factor`, in percent; 0: no bound.
        loss: The replica that is lost, if any.
        seed: Of all that is drawn.
    """

    replicas: int
    replica: ReplicaShape
    request: RequestShape
    rate: float = 0.0
    callers: int = 8
    think_s: float = 0.0
    weight: int = 1
    balance_factor: int = 150
    loss: Loss | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of each request, in order of arrival.

    Attributes:
        arrived_s: When it arrived.
        latency_s: Seconds until its answer; NaN if it failed.
        cached: Part of its query that was cached, 0 to 1; NaN if it failed.
        replica: Which served it.
        is_spilled: Whether that was not the one that its query then had, since this had no room.
        rows: New tokens of all steps, and their rows with padding.
    """

    arrived_s: Float64[np.ndarray, " requests"]
    latency_s: Float64[np.ndarray, " requests"]
    cached: Float64[np.ndarray, " requests"]
    replica: Int64[np.ndarray, " requests"]
    is_spilled: Shaped[np.ndarray, " requests"]
    rows: tuple[int, int] = (0, 0)

    @property
    def padded_share(self) -> float:
        """The part of all steps' rows that was padding."""
        tokens, rows = self.rows
        return 1 - tokens / rows if rows else 0.0

    def hit_rate(self, first: int = 0, end: int | None = None) -> float:
        """Return the part of the query tokens of requests `first` to `end` that was cached; NaN if all failed."""
        cached = self.cached[first:end]
        served = cached[~np.isnan(cached)]
        return float(served.mean()) if len(served) else math.nan

    def latency(self, quantile: float, first: int = 0, end: int | None = None) -> float:
        """Return a quantile of the latencies of requests `first` to `end`, in seconds; NaN if all failed."""
        latency = self.latency_s[first:end]
        served = latency[~np.isnan(latency)]
        return float(np.quantile(served, quantile)) if len(served) else math.nan

    @property
    def failed(self) -> int:
        """Requests that were lost with their replica."""
        return int(np.isnan(self.latency_s).sum())


def simulate(
    scenario: Scenario,
    queries: Int64[np.ndarray, " requests"],
    *,
    shares: Float64[np.ndarray, " queries"] | None = None,
    keys: Int64[np.ndarray, " queries"] | None = None,
) -> Outcome:
    """Run a scenario.

    Args:
        scenario: What is simulated.
        queries: The number of each request's query, in order of arrival.
        shares: The part of requests that each query has: replicas begin with what they would have after a long time.
            Without it they begin with nothing.
        keys: The hash of each query, of 32 bits; drawn unless given.

    Raises:
        ValueError: there are too many replicas, or a query does not fit a cache.
    """
    if not 1 <= scenario.replicas <= MAX_REPLICAS:
        raise ValueError(f"A simulation has 1 to {MAX_REPLICAS} replicas, not {scenario.replicas}.")
    known = max(int(queries.max(initial=0)) + 1, 0 if shares is None else len(shares))
    run = _Run(scenario, queries, keys if keys is not None else _draw_keys(known, scenario.seed))
    if shares is not None:
        run.warm(shares)
    return run.outcome()


def simulate_loss(scenario: Scenario, shares: Float64[np.ndarray, " queries"], requests: int) -> Simulated:
    """Simulate replicas that have served for long; where there are several, one is lost after half of the requests.

    Args:
        scenario: What is simulated, without a loss.
        shares: The part of requests that each query has.
        requests: How many, at least 100.

    Raises:
        ValueError: there are too many replicas.
    """
    half = requests // 2
    after = half + requests // 20
    is_lost = scenario.replicas > 1
    loss = Loss(after_requests=half, detection_s=DETECTION_S) if is_lost else None
    queries = draw_queries(shares, requests, np.random.default_rng([scenario.seed, 2]))
    outcome = simulate(replace(scenario, loss=loss), queries, shares=shares)
    served = np.bincount(outcome.replica[:half][outcome.replica[:half] >= 0], minlength=scenario.replicas)
    lost = Lost(
        failed=outcome.failed,
        hit_rate=outcome.hit_rate(half, after),
        p99_ms=outcome.latency(0.99, half, after) * 1e3,
        late_hit_rate=outcome.hit_rate(requests * 3 // 4),
    )
    return Simulated(
        requests=requests,
        hit_rate=outcome.hit_rate(0, half),
        spill_rate=float(outcome.is_spilled[:half].mean()),
        p50_ms=outcome.latency(0.5, 0, half) * 1e3,
        p99_ms=outcome.latency(0.99, 0, half) * 1e3,
        busiest=float(served.max() / served.mean()),
        padded_share=outcome.padded_share,
        lost=lost if is_lost else None,
    )


def _draw_keys(queries: int, seed: int) -> Int64[np.ndarray, " queries"]:
    return np.random.default_rng([seed, 1]).integers(2**32, size=queries)


class _Run:
    def __init__(
        self, scenario: Scenario, queries: Int64[np.ndarray, " requests"], keys: Int64[np.ndarray, " queries"]
    ) -> None:
        self.scenario, self.queries = scenario, queries
        self.keys: list[int] = keys.tolist()
        self.rng = np.random.default_rng(scenario.seed)
        self.environment = simpy.Environment()
        self.ring = Ring([scenario.weight] * scenario.replicas, scenario.balance_factor)
        self.ever: list[SimulatedReplica] = []  # those that died included
        self.replicas = [self._new_replica() for _ in range(scenario.replicas)]
        self.served = [0] * scenario.replicas  # as the gateway counts
        self.number = 0  # of the next request of a caller
        count = len(queries)
        arrived_s, latency_s, cached = np.full((3, count), np.nan)
        self.result = Outcome(arrived_s, latency_s, cached, np.full(count, -1), np.zeros(count, bool))

    def warm(self, shares: Float64[np.ndarray, " queries"]) -> None:
        """Fill the caches as after a long time.

        The time since a query was last asked is exponential, so what each replica kept last can be drawn outright.
        """
        age = self.rng.exponential(size=len(shares)) / shares
        room = self.scenario.replica.cache_tokens // PAGE_SIZE // self.scenario.request.pages
        newest: list[list[int]] = [[] for _ in self.replicas]
        left = room * len(self.replicas)
        for query in np.argsort(age).tolist():
            kept = newest[self.ring.home(self.keys[query]) or 0]
            if len(kept) < room:
                kept.append(query)
                left -= 1
                if not left:
                    break
        for replica, kept in zip(self.replicas, newest, strict=True):
            for query in reversed(kept):
                replica.keep(query)

    def outcome(self) -> Outcome:
        """Run until every request has ended."""
        scenario, environment = self.scenario, self.environment
        if scenario.rate:
            environment.process(self._arrivals())
        else:
            for _ in range(scenario.callers):
                environment.process(self._caller())
        environment.run()
        return replace(self.result, rows=(sum(each.tokens for each in self.ever), sum(each.rows for each in self.ever)))

    def _new_replica(self) -> SimulatedReplica:
        scenario = self.scenario
        self.ever.append(SimulatedReplica(self.environment, scenario.replica, scenario.request, self.rng))
        return self.ever[-1]

    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        gaps = self.rng.exponential(1 / self.scenario.rate, len(self.queries))
        for number, gap in enumerate(gaps.tolist()):
            yield self.environment.timeout(gap)
            self.environment.process(self._ask(number))

    def _caller(self) -> Generator[simpy.Event, Any, None]:
        while self.number < len(self.queries):
            number = self.number
            self.number += 1
            yield from self._ask(number)
            if self.scenario.think_s:
                yield self.environment.timeout(self.scenario.think_s)

    def _ask(self, number: int) -> Generator[simpy.Event, Any, None]:
        environment, loss, result = self.environment, self.scenario.loss, self.result
        if loss is not None and number == loss.after_requests:
            environment.process(self._lose(loss))
        result.arrived_s[number] = environment.now
        query = int(self.queries[number])
        chosen = self.ring.choose(self.keys[query], self.served)
        if chosen is not None and not self.replicas[chosen].is_up:
            refused, chosen = chosen, self.ring.choose(self.keys[query], self.served, avoid=chosen)
            self.ring.set_up(refused, False)  # `observe layer4`, `error-limit 1`, `on-error mark-down`
        if chosen is None or not self.replicas[chosen].is_up:
            return
        result.replica[number] = chosen
        result.is_spilled[number] = chosen != self.ring.home(self.keys[query])
        self.served[chosen] += 1
        cached = yield self.replicas[chosen].serve(query)
        self.served[chosen] -= 1
        if cached is not None:
            result.cached[number] = cached / self.scenario.request.query_tokens
            result.latency_s[number] = environment.now - result.arrived_s[number]

    def _lose(self, loss: Loss) -> Generator[simpy.Event, Any, None]:
        self.replicas[loss.replica].kill()
        yield self.environment.timeout(min(loss.detection_s, loss.returns_s))
        self.ring.set_up(loss.replica, False)
        if math.isfinite(loss.returns_s):
            yield self.environment.timeout(max(loss.returns_s - loss.detection_s, 0.0))
            self.replicas[loss.replica] = self._new_replica()
            self.ring.set_up(loss.replica, True)
