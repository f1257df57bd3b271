"""Which queries are asked, how often, and how many of them a cache has: Zipf's law and Che's approximation."""

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import brentq


def zipf_shares(queries: int, exponent: float) -> Float64[np.ndarray, " queries"]:
    """Return the part of requests that each query has, in proportion to `1 / rank ** exponent`, largest first."""
    shares = np.arange(1, queries + 1, dtype=np.float64) ** -exponent
    return shares / shares.sum()


def draw_queries(
    shares: Float64[np.ndarray, " queries"], requests: int, rng: np.random.Generator
) -> Int64[np.ndarray, " requests"]:
    """Draw the query of each request, independently of each other."""
    return np.searchsorted(np.cumsum(shares), rng.random(requests) * (1 - 1e-12)).clip(0, len(shares) - 1)


def expected_hit_rate(shares: Float64[np.ndarray, " queries"], capacity: float) -> float:
    """Return the part of requests that find their query in a cache of the `capacity` last used ones.

    By the approximation of Che, Tung and Wang (IEEE J. Sel. Areas Commun. 20, 2002): a query is forgotten after a time
    that is the same for all, within which on average `capacity` different ones are asked.
    """
    if capacity >= len(shares):
        return 1.0
    if capacity <= 0:
        return 0.0

    def excess(log_time: float) -> float:
        return float(-np.expm1(-shares * np.exp(log_time)).sum()) - capacity

    time = np.exp(brentq(excess, np.log(capacity) - 1, np.log(64 / shares[-1])))
    return float(shares @ -np.expm1(-shares * time))
