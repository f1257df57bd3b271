"""Measure how often three real replicas behind HAProxy find a query in their cache; prints JSON.

python cluster/support/measure.py --queries 600 --requests 1200 --callers 8 --factor 200
python cluster/support/measure.py --queries 300 --requests 3000 --zipf 1.0 --lose 1500
"""

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from gateway import running_gateway
from load import Answer, Ask, ask_all, ask_of, owners
from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.server import RunningServer
from replicas import CONTEXT, FLAGS, running_replicas


def drawn(queries: int, requests: int, zipf: float | None, seed: int) -> list[int]:
    """Return the query of every request: each equally often, shuffled; or by Zipf's law with this exponent."""
    if zipf is None:
        asked = [query for query in range(queries) for _ in range(requests // queries)]
        random.Random(seed).shuffle(asked)
        return asked
    shares = 1 / np.arange(1, queries + 1) ** zipf
    return np.random.default_rng(seed).choice(queries, requests, p=shares / shares.sum()).tolist()


def summary(answers: Sequence[Answer], home: dict[int, str]) -> dict[str, Any]:
    """Return the rates of some answers: hits among all, and where the bound sent requests elsewhere than home."""
    done = [each for each in answers if each.status == 200]
    return {
        "requests": len(answers),
        "errors": len(answers) - len(done),
        "hit_rate": round(sum(each.cached_tokens > 0 for each in done) / max(len(done), 1), 4),
        "spill_rate": round(sum(each.replica != home[each.query] for each in done) / max(len(done), 1), 4),
        "mean_s": round(statistics.fmean([each.seconds for each in done]), 4),
        "mean_hit_s": _mean([each.seconds for each in done if each.cached_tokens]),
        "mean_miss_s": _mean([each.seconds for each in done if not each.cached_tokens]),
        "by_replica": {name: sum(each.replica == name for each in done) for name in sorted({*home.values()})},
    }


def main() -> None:
    """Start the replicas and HAProxy, ask, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=600)
    parser.add_argument("--requests", type=int, default=1200)
    parser.add_argument("--zipf", type=float, help="exponent; default: every query equally often")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--factor", type=int, default=200, help="hash-balance-factor, in percent; 0: no bound")
    parser.add_argument("--lose", type=int, help="kill the last replica before this request")
    parser.add_argument("--cache-tokens", type=int, help="size of each replica's cache; default: for all queries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", action="store_true", help="print every request, too")
    given = parser.parse_args()
    flags = FLAGS if given.cache_tokens is None else (*FLAGS, "--max-total-tokens", str(given.cache_tokens))
    numbers = drawn(given.queries, given.requests, given.zipf, given.seed)
    asks = [ask_of(number, "text", 0) for number in numbers]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_replicas(tiny_checkpoint(folder, max_position_embeddings=CONTEXT), given.replicas, flags) as replicas,
        running_gateway([each.base_url for each in replicas], MIS_GATEWAY_BALANCE_FACTOR=str(given.factor)) as gateway,
    ):
        warm_up(replicas)
        home = owners(gateway, [ask_of(number, "text", 0) for number in range(given.queries)])

        def lose(number: int) -> None:
            if number == given.lose:
                os.killpg(replicas[-1].process.pid, signal.SIGKILL)

        answers = ask_all(gateway.url, asks, given.callers, lose)
        split = len(answers) if given.lose is None else given.lose
        result = {"options": vars(given), "before": summary(answers[:split], home)}
        if given.lose is not None:
            later = owners(gateway, [ask_of(number, "text", 0) for number in range(given.queries)])
            result["after"] = summary(answers[split:], later)
    if given.rows:
        fields = ("query", "status", "replica", "cached_tokens", "began_s", "seconds")
        result["rows"] = [{name: getattr(each, name) for name in fields} for each in answers]
    print(json.dumps(result))


def warm_up(replicas: Sequence[RunningServer], asks: Sequence[Ask] = ()) -> None:
    """Have every replica compile what requests need, and forget it."""
    for replica in replicas:
        for ask in asks or [ask_of(-1, "text", turn) for turn in range(2)]:
            ask_all(replica.base_url, [ask], 1)
    forget(replicas)


def forget(replicas: Sequence[RunningServer]) -> None:
    """Empty the prefix caches."""
    for replica in replicas:
        httpx.post(f"{replica.base_url}/flush_cache", trust_env=False, verify=False, timeout=60).raise_for_status()


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 4) if values else None


if __name__ == "__main__":
    main()
