"""`mis-bench plan`: its figures follow from rates, and its messages name the option."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mis_bench.capacity.plan import CapacityPlan, DeviceRate, PlanError, PlanRequest
from mis_bench.capacity.planning import cache_capacity, device_rate, plan, state_capacity
from mis_bench.cli import main
from mis_bench.estimate.serving import ServingEstimate
from mis_bench.workload import build_workload
from mis_core.models.published import PUBLISHED

ESTIMATE = ServingEstimate(
    topology="v6e:1x1",
    model="qwen3-0.6b",
    workload="plan-2000-500-20",
    workload_sha256="",
    steps=1,
    milliseconds=50,
    items_per_second=10_000,
    best_items_per_second=12_000,
    worst_items_per_second=8000,
    stages=[],
    roofline_items_per_second=30_000,
    roofline_share=0.3,
    padded_share=0,
    memory_bytes=1,
    memory_limit_bytes=2,
)


def planned(device: float = 10_000, **fields: Any) -> CapacityPlan:
    usual: dict[str, Any] = {"items_per_day": 1e9}
    rate = DeviceRate(
        items_per_second=device, best_items_per_second=device, worst_items_per_second=device, source="given"
    )
    return plan(PlanRequest(**usual | fields), rate)


def test_chips_hosts_and_cost_follow_from_the_device() -> None:
    found = planned(price=3, utilization=0.5)  # 11,574 items/s of 5,000 a chip
    assert (found.replicas, found.chips, found.hosts) == (3, 3, 3)
    assert found.cost_per_million_items == pytest.approx(3 * 3 * 24 / 1000)
    assert found.bottleneck == "device"
    assert found.resources[0].used == pytest.approx(1e9 / 86400 / 3 / 10_000)
    assert found.simulated is None
    assert planned().cost_per_million_items is None


def test_a_night_takes_more_chips_and_costs_the_same() -> None:
    day, night = planned(items_per_day=1e11, price=1), planned(items_per_day=1e11, price=1, hours=8)
    assert night.chips == pytest.approx(3 * day.chips, abs=2)
    assert night.cost_per_million_items == pytest.approx(day.cost_per_million_items, rel=0.02)


@pytest.mark.parametrize(
    ("fields", "bottleneck"),
    [
        ({"device": 1e9}, "host, engine process"),
        ({"network_gbps": 0.001}, "network"),
        ({"storage_mbps": 0.5}, "storage"),
        ({"items": 1, "query": 20, "device": 1e9}, "host, engine process"),
    ],
)
def test_what_is_tightest_limits(fields: dict[str, Any], bottleneck: str) -> None:
    found = planned(**fields)
    assert found.bottleneck == bottleneck
    assert found.resources[0].used <= found.utilization
    assert f"Bottleneck: {bottleneck}" in str(found)


def test_replicas_of_a_host_share_its_network() -> None:
    one, eight = planned(network_gbps=0.01), planned(network_gbps=0.01, topology="v7x:1x1x1")
    rates = [
        next(each.items_per_second for each in found.resources if each.name == "network") for found in (one, eight)
    ]
    assert rates[0] == pytest.approx(8 * rates[1])
    assert (eight.chips, eight.hosts) == (-(-eight.replicas // 2), -(-eight.replicas // 8))


def test_the_network_carries_bodies() -> None:
    found = planned(network_gbps=1)
    network = next(each for each in found.resources if each.name == "network")
    body = json.dumps(build_workload("plan-2000-500-20").request, separators=(",", ":"))
    assert 500 / network.items_per_second * 1e9 / 8 == pytest.approx(len(body))


def test_cached_queries_save_their_part() -> None:
    fields: dict[str, Any] = {"device": 500, "query": 8000, "items": 20}
    new, cached = planned(**fields), planned(**fields, distinct_queries=5, simulated_requests=300)
    assert cached.hit_rate == 1
    assert 0.9 < cached.query_share < 1
    assert cached.replicas < new.replicas / 3


def test_the_fewest_replicas_are_found() -> None:
    fields: dict[str, Any] = {"distinct_queries": 3000, "zipf": 0.7, "query": 4000, "items": 50, "items_per_day": 1e9}
    found = planned(**fields, simulated_requests=400)
    assert found.resources[0].used <= 0.7
    assert 0 < found.hit_rate < 1
    assert found.simulated is not None
    assert found.simulated.lost is not None
    assert found.simulated.hit_rate == pytest.approx(found.hit_rate, abs=0.2)
    assert CapacityPlan.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({}, 0.0, 0.05),
        ({"query": 200, "items": 16}, 0.0, 0.1),
        ({"query": 60, "items": 1, "item_tokens": 15}, 0.0, 0.15),
        ({"query": 1100, "items": 1}, 0.2, 0.4),  # runs of 512 rows for each context
    ],
)
def test_padding_is_counted(fields: dict[str, Any], least: float, most: float) -> None:
    found = planned(**fields)
    assert least <= found.padded_share < most
    assert f"{found.padded_share:.1%} of the rows of full steps are padding" in str(found)


def test_steps_that_are_not_full_are_padded_and_paid_for() -> None:
    """A small request alone takes the smallest compiled size that holds it, and the time of that."""
    fields: dict[str, Any] = {"query": 60, "items": 1, "item_tokens": 15, "distinct_queries": 10**5, "zipf": 0}
    busy = planned(device=1000, items_per_day=60e6, simulated_requests=400, **fields).simulated
    idle = planned(device=1000, items_per_day=0.5e6, simulated_requests=400, **fields).simulated
    assert busy is not None
    assert idle is not None
    assert idle.padded_share > busy.padded_share
    assert idle.padded_share == pytest.approx(1 - 75 / 128, abs=0.05)


def test_a_single_replica_is_not_lost() -> None:
    found = planned(items_per_day=1e7, distinct_queries=50, simulated_requests=200)
    assert found.replicas == 1
    assert found.simulated is not None
    assert found.simulated.lost is None
    assert "after a replica is lost" not in str(found)


def test_a_cache_has_what_the_weights_leave() -> None:
    small, large = PUBLISHED["qwen3-0.6b"], PUBLISHED["qwen3-8b"]
    assert 200_000 < cache_capacity(small, "v6e:1x1", 1, 1) < 30.3e9 / 114_688
    assert cache_capacity(small, "v6e:2x2", 4, 1) == 4 * cache_capacity(small, "v6e:1x1", 1, 1)
    assert cache_capacity(large, "v5e:1x1", 1, 1) < 0


def test_states_of_recurrent_layers_have_a_tenth_of_the_memory() -> None:
    config = PUBLISHED["qwen3.5-0.8b"]
    free, slot = 0.88 * 34.4e9 - 2 * 751_894_528, 18 * 4 * (16 * 128**2 + 3 * 6144)
    slots = int(0.1 * free / slot)
    assert state_capacity(config, "v6e:1x1", 1, 1) == slots
    assert cache_capacity(config, "v6e:1x1", 1, 1) == int((free - slots * slot) / (6 * 2 * 2 * 256 * 2))
    assert state_capacity(PUBLISHED["qwen3-0.6b"], "v6e:1x1", 1, 1) == 0
    found = planned(model="qwen3.5-0.8b")
    assert (found.state_slots, found.state_bytes) == (slots, slot)
    assert f"{slots} slots for recurrent states a replica, {slot / 1e6:.1f} MB each" in str(found)
    assert "recurrent" not in str(planned())


def test_queries_are_cached_no_more_than_their_states() -> None:
    """Two states of a query are kept. A cache of tokens alone would have all of 300 queries."""
    queries = {"distinct_queries": 300, "zipf": 0, "items_per_day": 1e6, "simulated_requests": 100}
    slots = state_capacity(PUBLISHED["qwen3.5-0.8b"], "v6e:1x1", 1, 1)
    found = planned(model="qwen3.5-0.8b", **queries)
    assert found.replicas == 1
    assert found.hit_rate == pytest.approx(slots // 2 / 300, abs=0.02)
    assert planned(model="qwen3-0.6b", cache_tokens=10**6, **queries).hit_rate == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topology": "v9:1x1"}, "There is no topology 'v9:1x1'"),
        ({"model": "gpt-9"}, "There is no model 'gpt-9'"),
        ({"model": "qwen3-8b", "topology": "v5e:1x1"}, "does not fit a cache of 0: see --tp"),
        ({"cache_tokens": 640}, "A query of 2000 tokens does not fit a cache of 640"),
        ({"items_per_day": 1e12, "distinct_queries": 10**6}, "leave out --distinct-queries"),
    ],
)
def test_what_cannot_be_planned_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        planned(**fields)


def test_a_stored_estimate_takes_the_place_of_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "estimate.json"
    path.write_text(ESTIMATE.model_dump_json())
    load = ["plan", "--items-per-day", "1e9", "--utilization", "0.5", "--estimate", str(path)]
    done = CliRunner().invoke(main, [*load, "--json"])
    fields = json.loads(done.output)
    assert (fields["chips"], fields["chips_best"], fields["chips_worst"]) == (3, 2, 3)
    assert fields["device"]["source"] == "estimated"
    assert "3 chips, 2 at best, 3 at worst, 50% used" in CliRunner().invoke(main, load).output


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("topology", "v5e:1x1", "--estimate is for topology v6e:1x1; the plan is for v5e:1x1"),
        ("model-shape", "qwen3-4b", "--estimate is for model qwen3-0.6b; the plan is for qwen3-4b"),
        ("query", "100", "--estimate is for query 2000; the plan is for 100"),
        ("items", "5", "--estimate is for items 500; the plan is for 5"),
        ("item-tokens", "9", "--estimate is for item_tokens 20.0; the plan is for 9"),
        ("quantization", "int8", "--estimate is for quantization none; the plan is for int8"),
    ],
)
def test_an_estimate_of_something_else_is_refused(option: str, value: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "estimate.json"
    path.write_text(ESTIMATE.model_dump_json())
    done = CliRunner().invoke(main, ["plan", "--items-per-day", "1e9", "--estimate", str(path), f"--{option}", value])
    assert done.exit_code == 1
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--items-per-day'"),
        (["--items-per-day", "0"], "is not in the range"),
        (["--items-per-day", "1", "--balance-factor", "90"], "must be above 100, or 0"),
        (["--items-per-day", "1", "--estimate", __file__], "--estimate is not what `mis-bench estimate --json` prints"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["plan", *arguments])
    assert done.exit_code != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_rate_the_compiler_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_bench.estimate.pricing.find_spec", lambda _: None)
    done = CliRunner().invoke(main, ["plan", "--items-per-day", "1e9"])
    assert (done.exit_code, done.stderr) == (1, "Error: An estimate needs the TPU's compiler: pip install libtpu.\n")


def test_a_measured_rate_needs_no_estimate() -> None:
    rate = device_rate(PlanRequest(items_per_day=1), items_per_second=321)
    assert (rate.items_per_second, rate.worst_items_per_second, rate.source) == (321, 321, "given")
