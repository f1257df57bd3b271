"""Measure three real replicas behind HAProxy, simulate the same, and print both side by side.

python cluster/support/predict.py --zipf 1.2 --factor 150
python cluster/support/predict.py --requests 3000 --lose 1500
python cluster/support/predict.py --requests 4000 --lose 1500 --back 2000

The simulation is told what was asked, in order, with the keys that HAProxy hashed; the size of the caches; when a
replica was lost and when it was there again; and how long steps, fronts and callers took, with their variation
(`timing.py`). It is told of no hit and no spill.
"""

import argparse
import contextlib
import dataclasses
import math
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from gateway import Gateway, running_gateway
from load import Answer, Ask, ask_all, ask_of_ids, owners
from measure import drawn, forget
from mis_bench.capacity.replica import ReplicaShape, RequestShape
from mis_bench.capacity.ring import Ring, key_of
from mis_bench.capacity.rows import StepRoom
from mis_bench.capacity.simulation import Loss, Outcome, Scenario, simulate
from mis_core.scheduler.plan import PAGE_SIZE
from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.server import RunningServer, running_command
from replicas import CONTEXT, running_replicas
from timing import Timing, counts, gateway_seconds, timing

QUERIES = 300
REQUEST = RequestShape(query_tokens=700, item_tokens=3, item_length=2)  # 11 pages: a group of eight, and three
STEP_TOKENS = 256
CACHE_TOKENS = 36 * REQUEST.pages * PAGE_SIZE  # of about 100 queries that a replica gets
CALLERS = 8
WEIGHTS = [64, 64, 64]  # in deploy/haproxy/haproxy.cfg
LOST = len(WEIGHTS) - 1
DETECTION_S = 2.0  # likewise: two checks
FLAGS = (
    *("--dtype", "float32", "--skip-warmup"),
    *("--chunked-prefill-size", str(STEP_TOKENS), "--max-total-tokens", str(CACHE_TOKENS)),
)
_DEATH_S = 30
_SEEDS = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is asked: requests by Zipf's law about `QUERIES` queries, and how the gateway balances them.

    Attributes:
        requests: How many.
        zipf: Exponent of the queries' popularity.
        factor: `hash-balance-factor`, in percent; 0: no bound.
        lose: A replica is killed before this request; None: none is.
        back: It is started again before this request; None: it stays away.
        seed: Of the drawn queries.
    """

    requests: int
    zipf: float
    factor: int
    lose: int | None = None
    back: int | None = None
    seed: int = 0

    @property
    def parts(self) -> dict[str, slice]:
        """Requests by name: around a loss as many before as after it, and the last ones."""
        if self.lose is None:
            return {"all": slice(None)}
        width = min(self.lose // 2, (self.back or self.requests) - self.lose)
        return {
            "before": slice(self.lose - width, self.lose),
            "after": slice(self.lose, self.lose + width),
            "last": slice(-width, None),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A setting, measured and simulated.

    Attributes:
        setting: What was asked.
        measured: Of three replicas.
        simulated: Of as many; they differ in what is drawn.
        timing: What the simulations were told of time.
        events: Which replicas HAProxy found down or up, and why.
    """

    setting: Setting
    measured: Outcome
    simulated: list[Outcome]
    timing: Timing
    events: list[str]

    def hits(self, part: str) -> tuple[float, float]:
        """Return the part of query tokens that were cached, measured and simulated."""
        return self._both(lambda each: each.cached[self.setting.parts[part]])

    def spills(self, part: str) -> tuple[float, float]:
        """Return the part of requests that the bound sent elsewhere."""
        return self._both(lambda each: each.is_spilled[self.setting.parts[part]])

    @property
    def drops(self) -> tuple[float, float]:
        """By how much hits fell with the loss."""
        (measured, simulated), after = self.hits("before"), self.hits("after")
        return measured - after[0], simulated - after[1]

    def __str__(self) -> str:
        """Return a line for each figure, in percent, with the difference in points."""
        lines = [f"{'':16} measured simulated points"]
        for part in self.setting.parts:
            lines += [_line(f"hits, {part}", *self.hits(part)), _line(f"spills, {part}", *self.spills(part))]
        if self.setting.lose is not None:
            simulated = float(np.mean([each.failed for each in self.simulated]))
            lines += [_line("drop of hits", *self.drops), f"{'failed':16} {self.measured.failed:8} {simulated:9.1f}"]
        return "\n".join([*lines, str(self.timing), *self.events])

    def _both(self, values: Callable[[Outcome], np.ndarray]) -> tuple[float, float]:
        return (
            float(np.nanmean(values(self.measured))),
            float(np.mean([np.nanmean(values(each)) for each in self.simulated])),
        )


def _line(name: str, measured: float, simulated: float) -> str:
    return f"{name:16} {measured:8.1%} {simulated:9.1%} {100 * (simulated - measured):+6.1f}"


def ask_of(query: int) -> Ask:
    """Return a request about a query, always the same."""
    chance = random.Random(f"query {query}")
    return ask_of_ids(query, [chance.randrange(1, 900) for _ in range(REQUEST.query_tokens)])


@contextlib.contextmanager
def warm_replicas(checkpoint: Path) -> Iterator[list[RunningServer]]:
    """Run three replicas that have compiled what the requests need, also of several at once."""
    with running_replicas(checkpoint, len(WEIGHTS), FLAGS) as replicas:
        for each in replicas:
            ask_all(each.base_url, [ask_of(-1 - number // 2) for number in range(6 * CALLERS)], CALLERS)
        yield replicas


@dataclass(slots=True)
class _Away:
    """A replica that dies and may return, with the times of both."""

    gateway: Gateway
    replica: RunningServer
    checkpoint: Path
    died: float = math.inf
    returned: float = math.inf
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    threads: list[threading.Thread] = field(default_factory=list)

    def die(self) -> None:
        """Kill it and wait for its end: until then its port takes requests, and loses them."""
        self.died = time.monotonic()
        os.killpg(self.replica.process.pid, signal.SIGKILL)
        self.replica.process.wait(_DEATH_S)

    def begin_to_return(self) -> None:
        self.threads.append(threading.Thread(target=self._return))
        self.threads[0].start()

    def _return(self) -> None:
        url = self.replica.base_url
        port = url.rpartition(":")[2]
        command = [sys.executable, "-m", "mis_server", "serve", str(self.checkpoint), "--port", port, *FLAGS]
        self.stack.enter_context(running_command(command, url))
        self.gateway.wait_until(replica_3="UP")
        self.returned = time.monotonic()


def compare(setting: Setting, replicas: Sequence[RunningServer], checkpoint: Path) -> Compared:
    """Measure, then simulate. A replica that was lost is not there afterwards."""
    forget(replicas)
    asked = drawn(QUERIES, setting.requests, setting.zipf, setting.seed)
    asks = [ask_of(query) for query in asked]
    urls = [each.base_url for each in replicas]
    whole = {f"replica-{i}": url for i, url in enumerate(urls, 1) if setting.lose is None or i != LOST + 1}
    with running_gateway(urls, MIS_GATEWAY_BALANCE_FACTOR=str(setting.factor)) as gateway:
        keys = keys_of(gateway, sorted({*asked}))
        logged, first = len(gateway.log), {name: counts(url) for name, url in whole.items()}
        away = _Away(gateway, replicas[LOST], checkpoint)

        def before(number: int) -> None:
            if number == setting.lose:
                away.die()
            elif number == setting.back:
                away.begin_to_return()

        with away.stack:
            began = time.monotonic()  # as the answers' own times
            answers = ask_all(gateway.url, asks, CALLERS, before)
            for thread in away.threads:
                thread.join()
        took = timing(
            answers,
            {name: counts(url) - first[name] for name, url in whole.items()},
            query_tokens=REQUEST.query_tokens,
            step_tokens=STEP_TOKENS,
            in_gateway_s=gateway_seconds(gateway.log[logged:]),
            callers=CALLERS,
        )
        events = re.findall(r"^Server replicas/.*", gateway.log[logged:], re.MULTILINE)
    queries = np.array(asked)
    lost = None
    if setting.lose is not None:
        lost = Loss(
            after_requests=setting.lose,
            replica=LOST,
            detection_s=DETECTION_S,
            returns_s=away.returned - away.died,
        )
    scenario = _scenario(setting, took, lost)
    return Compared(
        setting=setting,
        measured=_measured(queries, keys, answers, away.died - began, away.returned - began),
        simulated=[simulate(dataclasses.replace(scenario, seed=seed), queries, keys=keys) for seed in _SEEDS],
        timing=took,
        events=events,
    )


def keys_of(gateway: Gateway, queries: Sequence[int]) -> Int64[np.ndarray, " queries"]:
    """Return HAProxy's hash of each of these queries, and 0 for the others; from its log."""
    begin = len(gateway.log)
    owners(gateway, [ask_of(query) for query in queries])
    hashes = np.zeros(QUERIES, np.int64)
    hashes[queries] = [key_of(key) for key in gateway.query_keys(len(queries), begin)]
    return hashes


def _scenario(setting: Setting, took: Timing, lost: Loss | None) -> Scenario:
    return Scenario(
        replicas=len(WEIGHTS),
        replica=ReplicaShape(
            cache_tokens=CACHE_TOKENS,
            room=StepRoom(STEP_TOKENS),  # the time of a token, as it was fitted, has its part of the padding
            step_s=took.step_s,
            row_s=took.token_s,
            front_s=took.front_s,
            step_factors=took.step_factors,
            front_factors=took.front_factors,
        ),
        request=REQUEST,
        callers=CALLERS,
        think_s=took.think_s,
        weight=WEIGHTS[0],
        balance_factor=setting.factor,
        loss=lost,
    )


def _measured(
    queries: np.ndarray, keys: np.ndarray, answers: Sequence[Answer], died_s: float, returned_s: float
) -> Outcome:
    ring, broken = Ring(WEIGHTS), Ring(WEIGHTS)
    broken.set_up(LOST, False)
    arrived = np.array([each.began_s for each in answers])
    good = np.array([each.status == 200 for each in answers])
    replica = np.array([int((each.replica or "-0").rpartition("-")[2]) - 1 for each in answers])
    homes = [
        (broken if died_s < when < returned_s else ring).home(key)
        for key, when in zip(keys[queries].tolist(), arrived.tolist(), strict=True)
    ]
    cached = np.array([each.cached_tokens for each in answers]) / REQUEST.query_tokens
    return Outcome(
        arrived_s=arrived,
        latency_s=np.where(good, [each.seconds for each in answers], np.nan),
        cached=np.where(good, cached, np.nan),
        replica=replica,
        is_spilled=good & (replica != np.array(homes)),
    )


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--zipf", type=float, nargs="+", default=[1.0], help="exponents; a run for each")
    parser.add_argument("--factor", type=int, nargs="+", default=[200], help="hash-balance-factor; a run for each")
    parser.add_argument("--lose", type=int, help="kill the last replica before this request")
    parser.add_argument("--back", type=int, help="start it again before this request")
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    for zipf in given.pop("zipf"):
        for factor in given.get("factor"):
            setting = Setting(**given | {"zipf": zipf, "factor": factor})
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = tiny_checkpoint(folder, max_position_embeddings=CONTEXT)
                with warm_replicas(checkpoint) as replicas:
                    print(f"{setting}\n{compare(setting, replicas, checkpoint)}\n", flush=True)


if __name__ == "__main__":
    main()
