"""What `mis-bench plan` simulates, beside HAProxy and three real replicas."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import Gateway, running_gateway
from mis_bench.capacity.ring import Ring, key_of
from predict import CALLERS, WEIGHTS, Setting, compare, warm_replicas
from pretended_replica import PretendedReplica, pretended_replica
from replicas import CONTEXT

POINTS = 0.05
_WAIT_S = 60


@pytest.fixture(scope="module")
def model(checkpoint_factory: Callable[..., Path]) -> Path:
    return checkpoint_factory(max_position_embeddings=CONTEXT)


def hold(replica: PretendedReplica) -> Callable[[Any], None]:
    """Answer when the test says so."""

    def behave(handler: Any) -> None:
        assert replica.go_on.wait(_WAIT_S), "the test did not go on"
        handler.reply(b"{}")

    return behave


@pytest.fixture
def pretended() -> Iterator[list[PretendedReplica]]:
    with ExitStack() as stack:
        yield [stack.enter_context(pretended_replica()) for _ in WEIGHTS]


def post(gateway: Gateway, query: int) -> httpx.Response:
    body = {"query": f"q {query}"}
    return httpx.post(f"{gateway.url}/v1/score", json=body, trust_env=False, verify=False, timeout=_WAIT_S)


def hashes_of(gateway: Gateway, queries: range) -> tuple[list[int], list[int]]:
    """Return of every query the hash, and the replica that gets it."""
    begin = len(gateway.log)
    got = [int(post(gateway, query).headers["x-mis-replica"].rpartition("-")[2]) - 1 for query in queries]
    return [key_of(key) for key in gateway.query_keys(len(queries), begin)], got


def test_keys_go_where_haproxy_sends_them(pretended: list[PretendedReplica]) -> None:
    with running_gateway([each.url for each in pretended], MIS_GATEWAY_BALANCE_FACTOR="0") as gateway:
        hashes, got = hashes_of(gateway, range(300))
        gateway.command("set server replicas/replica-2 state maint")
        again, without = hashes_of(gateway, range(300))
    ring = Ring(WEIGHTS)
    assert hashes == again
    assert got == [ring.home(key) for key in hashes]
    ring.set_up(1, False)
    assert without == [ring.home(key) for key in hashes]


@pytest.mark.parametrize("factor", [125, 150, 200])
def test_under_a_bound_keys_go_where_haproxy_sends_them(pretended: list[PretendedReplica], factor: int) -> None:
    """Requests come one by one, and none is answered before all are there."""
    with running_gateway([each.url for each in pretended], MIS_GATEWAY_BALANCE_FACTOR=str(factor)) as gateway:
        hashes, _ = hashes_of(gateway, range(8))
        for each in pretended:
            each.bodies.clear()
            each.behave = hold(each)
        ring, served = Ring(WEIGHTS, factor), [0] * len(WEIGHTS)
        spilled = 0
        with ThreadPoolExecutor(40) as threads:
            for number in range(40):
                query = number // 4 % 8 if number % 4 == 0 else 0
                threads.submit(post, gateway, query)
                expected = ring.choose(hashes[query], served)
                assert expected is not None
                served[expected] += 1
                spilled += expected != ring.home(hashes[query])
                wait_until(lambda: sum(len(each.bodies) for each in pretended) == sum(served))
                assert [len(each.bodies) for each in pretended] == served
            for each in pretended:
                each.go_on.set()
    assert 2 < spilled < 36


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)


SHORT = Setting(requests=600, zipf=1.0, factor=0, lose=300)
"""Without a bound: of so few requests it is chance which spill."""
LONG = [
    Setting(requests=600, zipf=1.0, factor=200),
    *(Setting(requests=2500, zipf=zipf, factor=factor) for zipf in (0.8, 1.0, 1.2) for factor in (150, 200, 0)),
    *(Setting(requests=3000, zipf=1.0, factor=factor, lose=1500) for factor in (150, 200, 0)),
    *(Setting(requests=3000, zipf=zipf, factor=200, lose=1500) for zipf in (0.8, 1.2)),
    Setting(requests=7000, zipf=1.0, factor=200, lose=1500, back=2500),
]
SETTINGS = [
    pytest.param(SHORT, id="short"),
    *(
        pytest.param(
            each, id=f"{each.requests}-{each.zipf}-{each.factor}-{each.lose}-{each.back}", marks=pytest.mark.full
        )
        for each in LONG
    ),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_hits_and_their_drop_are_as_simulated(
    setting: Setting, model: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    with warm_replicas(model) as replicas:
        found = compare(setting, replicas, model)
    record_testsuite_property(str(setting), str(found))
    for part in setting.parts:
        measured, simulated = found.hits(part)
        assert 0.2 < measured < 0.9, "a cache that has all queries, or none, would show nothing"
        assert simulated == pytest.approx(measured, abs=POINTS), found
    if setting.lose is not None:
        measured, simulated = found.drops
        assert simulated == pytest.approx(measured, abs=POINTS), found
        assert found.measured.failed <= CALLERS
