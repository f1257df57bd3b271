"""What a simulation tells of a plan: hit rate, latency, and what a lost replica does."""

import numpy as np
from jaxtyping import Float64
from pydantic import BaseModel

from mis_bench.capacity.queries import draw_queries
from mis_bench.capacity.replica import ReplicaShape, RequestShape
from mis_bench.capacity.simulation import Loss, Scenario, simulate

FOUND_OUT_S = 2.0
"""Until health checks take a replica away: two of them, one a second, in `deploy/haproxy`."""


class Lost(BaseModel):
    """What the loss of a replica does.

    Attributes:
        failed: Requests that it held.
        hit_rate: Of the first twentieth of all requests after the loss.
        p99_ms: Likewise.
        late_hit_rate: Of the last quarter of all requests.
    """

    failed: int
    hit_rate: float
    p99_ms: float
    late_hit_rate: float


class Simulated(BaseModel):
    """Figures of the first half of the requests, and of the second, before which a replica was lost.

    Attributes:
        requests: Of both halves.
        hit_rate: The part of query tokens that was cached.
        spill_rate: The part of requests that the bound sent to another replica than their query's.
        p50_ms: Latency without the network; likewise `p99_ms`.
        busiest: Requests of the busiest replica by those of an average one.
        lost: The second half; None of a single replica.
    """

    requests: int
    hit_rate: float
    spill_rate: float
    p50_ms: float
    p99_ms: float
    busiest: float
    lost: Lost | None

    def __str__(self) -> str:
        """Return the figures, a line each."""
        lines = [
            f"Simulated, {self.requests:,} requests:",
            f"{self.hit_rate:10.1%} of query tokens cached, {self.spill_rate:.1%} of requests sent elsewhere by the "
            "bound",
            f"{self.p50_ms:10,.0f} ms at the median, {self.p99_ms:,.0f} ms p99; the busiest replica has "
            f"{self.busiest:.2f} times the average",
        ]
        if (lost := self.lost) is not None:
            lines.append(
                f"{lost.hit_rate:10.1%} cached after a replica is lost, {lost.late_hit_rate:.1%} later; "
                f"{lost.p99_ms:,.0f} ms p99, {lost.failed} failed"
            )
        return "\n".join(lines)


def simulate_loss(
    shape: ReplicaShape,
    shares: Float64[np.ndarray, " queries"],
    *,
    replicas: int,
    rate: float,
    request: RequestShape,
    balance_factor: int,
    weight: int,
    requests: int,
    seed: int = 0,
) -> Simulated:
    """Simulate replicas that have served for long, one of which is lost after half of the requests.

    Args:
        shape: Of each replica.
        shares: The part of requests that each query has.
        replicas: How many.
        rate: Requests a second, of all together.
        request: Tokens of each.
        balance_factor: HAProxy's, in percent; 0: no bound.
        weight: Of each replica.
        requests: How many, at least 100.
        seed: Of all that is drawn.

    Raises:
        ValueError: there are too many replicas.
    """
    queries = draw_queries(shares, requests, np.random.default_rng([seed, 2]))
    half = requests // 2
    scenario = Scenario(
        replicas=replicas,
        replica=shape,
        request=request,
        rate=rate,
        balance_factor=balance_factor,
        weight=weight,
        loss=Loss(after_requests=half, found_out_s=FOUND_OUT_S) if replicas > 1 else None,
        seed=seed,
    )
    outcome = simulate(scenario, queries, shares=shares)
    served = np.bincount(outcome.replica[:half][outcome.replica[:half] >= 0], minlength=replicas)
    after = half + requests // 20
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
        lost=lost if replicas > 1 else None,
    )
