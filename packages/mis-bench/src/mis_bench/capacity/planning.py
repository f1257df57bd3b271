"""`plan`: chips, hosts and cost of a load, and what limits it: the device as estimated, the host as measured.

`docs/runbooks/capacity.md` has the method, and what each constant was measured with.
"""

import json
import math
from bisect import bisect_left
from dataclasses import dataclass

from mis_bench.capacity.plan import CapacityPlan, DeviceRate, PlanError, PlanRequest, Resource, Simulated
from mis_bench.capacity.queries import expected_hit_rate, zipf_shares
from mis_bench.capacity.replica import MAX_RUNNING, ReplicaShape, RequestShape, padding_when_full
from mis_bench.capacity.rows import StepRoom
from mis_bench.capacity.simulation import MAX_REPLICAS, Scenario, simulate_loss
from mis_bench.estimate.pricing import TOPOLOGIES, estimate
from mis_bench.estimate.serving import EstimateRequest, ServingEstimate
from mis_bench.workload import build_workload
from mis_core.aot.roofline import ITEM_BYTES, least_flops, weight_bytes
from mis_core.models.config import ModelConfig
from mis_core.models.layers import kept_elements
from mis_core.models.parallel import spread_heads
from mis_core.models.published import PUBLISHED
from mis_core.runner.buckets import step_shape, token_buckets
from mis_core.runner.memory import slots_within, state_bytes
from mis_core.scheduler.plan import LONGEST_ITEM, PAGE_SIZE
from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.targets import TARGETS
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import block_sizes

# Seconds of a request, and of each of its items of 20 tokens: docs/reports/2026-11-21-engine.md, "Host time", and
# 2026-11-21-server.md, "What HTTP costs", on two cores of a shared Xeon.
ENGINE_S = (0.9e-3, 6.7e-6)
FRONT_S = (0.6e-3, 2.8e-6)

STEP_TOKENS = 4096
"""Token budget of a step on each device."""

VALUE_BYTES = 20
"""Of a score in JSON."""

STATES_OF_QUERY = 2
"""Recurrent states that are kept of a query: at its end, and before its last page."""

_MEMORY = 0.88  # the part of a device's memory that weights and cache take, as `--mem-fraction-static`


@dataclass(frozen=True, slots=True)
class Machine:
    """What a topology is rented as: Google's machine types ct5lp-hightpu, ct6e-standard and tpu7x-standard-4t.

    Attributes:
        chips: Of a replica.
        replicas: Of a host.
    """

    chips: float
    replicas: int


MACHINES = {
    "v5e:1x1": Machine(1, 1),
    "v6e:1x1": Machine(1, 1),
    "v6e:2x2": Machine(4, 1),
    "v6e:2x4": Machine(8, 1),
    "v7x:1x1x1": Machine(0.5, 8),
}


def device_rate(
    asked: PlanRequest, estimate_json: str | None = None, items_per_second: float | None = None
) -> DeviceRate:
    """Return what a replica's devices do: as measured, as estimated before, or estimated now.

    Args:
        asked: What to plan for.
        estimate_json: What `mis-bench estimate --json` printed for the same request, model and topology.
        items_per_second: Measured with new queries.

    Raises:
        PlanError: the estimate is of something else, or is none.
        EstimateError: nothing was given, and an estimate is not possible here.
    """
    if items_per_second is not None:
        rates = dict.fromkeys(("items_per_second", "best_items_per_second", "worst_items_per_second"), items_per_second)
        return DeviceRate(**rates, source="given")
    workload = f"plan-{asked.query}-{asked.items}-{asked.item_tokens}"
    same = {name: getattr(asked, name) for name in ("topology", "model", "dp", "tp", "quantization")}
    if estimate_json is None:
        # So many that steps are full, as they are where a replica has all it can do.
        full = -(-4 * STEP_TOKENS * asked.dp // (asked.query + asked.items * asked.item_tokens))
        requests = min(max(full, EstimateRequest().requests), MAX_RUNNING)
        found = estimate(EstimateRequest(workload=workload, requests=requests, **same))
    else:
        try:
            found = ServingEstimate.model_validate(json.loads(estimate_json))
        except ValueError as error:
            raise PlanError(f"--estimate is not what `mis-bench estimate --json` prints: {error}") from None
        sizes = build_workload(found.workload)
        for name, (ours, theirs) in {
            **{name: (value, getattr(found, name)) for name, value in same.items()},
            "query": (asked.query, len(sizes.query)),
            "items": (asked.items, sizes.num_items),
            "item_tokens": (asked.item_tokens, (sizes.num_tokens - len(sizes.query)) / sizes.num_items),
        }.items():
            if ours != theirs:
                raise PlanError(f"--estimate is for {name} {theirs}; the plan is for {ours}.")
    return DeviceRate(
        items_per_second=found.items_per_second,
        best_items_per_second=found.best_items_per_second,
        worst_items_per_second=found.worst_items_per_second,
        source="estimated",
    )


def cache_capacity(config: ModelConfig, topology: str, dp: int, tp: int) -> int:
    """Return the tokens that fit the memory of a replica's devices beside weights and states, in bfloat16."""
    head_dim = max(config.attention.head_dim, 128)  # narrower heads are padded
    token_bytes = ITEM_BYTES * kept_elements(config.layers, head_dim)
    free = _free_bytes(config, topology, tp)
    return int((free - slots_within(free, config, 1) * state_bytes(config, 1)) / token_bytes) * dp


def state_capacity(config: ModelConfig, topology: str, dp: int, tp: int) -> int:
    """Return the slots for recurrent states of a replica's devices; 0: no layer is recurrent."""
    return slots_within(_free_bytes(config, topology, tp), config, 1) * dp


def _free_bytes(config: ModelConfig, topology: str, tp: int) -> float:
    chip = CHIPS[TARGETS[TOPOLOGIES[topology]].chip]
    return _MEMORY * chip.memory * tp - weight_bytes(config)


def step_room(asked: PlanRequest) -> StepRoom:
    """Return the room of the steps that such a request is computed in on a replica, its devices taken as one."""
    heads = spread_heads(PUBLISHED[asked.model], asked.tp).attention.on_device(asked.tp)
    blocks = block_sizes(chip=TARGETS[TOPOLOGIES[asked.topology]].chip, **heads._asdict())
    longest = asked.query + (asked.item_tokens if asked.item_tokens > LONGEST_ITEM else 0)
    pages = -(-longest // PAGE_SIZE)
    backend = TpuBackend(heads, "bfloat16", blocks)
    shape = step_shape(backend, STEP_TOKENS, pages_per_context=pages, shards=asked.dp, longest_item=LONGEST_ITEM)
    room = shape.room(shape.is_mixed(longest))
    sizes = [size * asked.dp for size in token_buckets(STEP_TOKENS)]
    return StepRoom(STEP_TOKENS * asked.dp, room.alignment, room.contexts * asked.dp, sizes)


def plan(asked: PlanRequest, device: DeviceRate) -> CapacityPlan:
    """Plan.

    Raises:
        PlanError: the topology or the model does not exist, the model or a query does not fit, or more replicas than
            can be simulated are needed.
    """
    load = _Load(asked)
    replicas, best, worst = (
        load.replicas(each)
        for each in (device.items_per_second, device.best_items_per_second, device.worst_items_per_second)
    )
    resources = sorted(
        (
            Resource(name=name, items_per_second=most, used=load.items_per_second / replicas / most)
            for name, most in load.limits(replicas, device.items_per_second).items()
        ),
        key=lambda each: each.items_per_second,
    )
    chips, chips_best, chips_worst = (math.ceil(each * load.machine.chips) for each in (replicas, best, worst))
    cost = None if asked.price is None else asked.price * chips * asked.hours / asked.items_per_day * 1e6
    return CapacityPlan(
        **asked.model_dump() | {"cache_tokens": load.cache_tokens},
        device=device,
        requests_per_second=load.items_per_second / asked.items,
        replicas=replicas,
        chips=chips,
        chips_best=chips_best,
        chips_worst=chips_worst,
        hosts=math.ceil(replicas / load.machine.replicas),
        hit_rate=load.hit_rate(replicas),
        query_share=load.query_share,
        padded_share=load.padded_share,
        state_slots=load.state_slots,
        state_bytes=load.state_bytes,
        resources=resources,
        bottleneck=resources[0].name,
        cost_per_million_items=cost,
        simulated=load.simulated(replicas, device.items_per_second),
    )


class _Load:
    """A load, and what limits the replicas that carry it."""

    def __init__(self, asked: PlanRequest) -> None:
        for name, known, what in ((asked.topology, MACHINES, "topology"), (asked.model, PUBLISHED, "model")):
            if name not in known:
                raise PlanError(f"There is no {what} {name!r}; choose from {', '.join(known)}.")
        config = PUBLISHED[asked.model]
        self.asked = asked
        self.machine = MACHINES[asked.topology]
        self.cache_tokens = asked.cache_tokens or cache_capacity(config, asked.topology, asked.dp, asked.tp)
        pages = -(-asked.query // PAGE_SIZE)
        if self.cache_tokens < pages * PAGE_SIZE:
            most = max(self.cache_tokens, 0)
            raise PlanError(f"A query of {asked.query} tokens does not fit a cache of {most}: see --tp.")
        self.state_slots = state_capacity(config, asked.topology, asked.dp, asked.tp)
        self.state_bytes = state_bytes(config, 1)
        if self.state_slots:  # a query without a state is computed anew
            self.cache_tokens = min(self.cache_tokens, self.state_slots // STATES_OF_QUERY * pages * PAGE_SIZE)
        self._cached_queries = self.cache_tokens // PAGE_SIZE // pages
        self._shares = zipf_shares(asked.distinct_queries, asked.zipf) if asked.distinct_queries else None
        body = build_workload(f"plan-{asked.query}-{asked.items}-{asked.item_tokens}").request
        self._sent, self._received = len(json.dumps(body, separators=(",", ":"))), 2 * asked.items * VALUE_BYTES
        query = least_flops(config, body | {"items": []}, normalised=True)
        self.query_share = query / least_flops(config, body, normalised=True)
        self.items_per_second = asked.items_per_day / (asked.hours * 3600)
        self._request = RequestShape(
            query_tokens=asked.query, item_tokens=asked.items * asked.item_tokens, item_length=asked.item_tokens
        )
        self._room = step_room(asked)
        self.padded_share = padding_when_full(self._room, self._request)

    def hit_rate(self, replicas: int) -> float:
        """Return the part of requests whose query is cached, if all caches together were one."""
        return 0.0 if self._shares is None else expected_hit_rate(self._shares, replicas * self._cached_queries)

    def limits(self, replicas: int, device_items: float) -> dict[str, float]:
        """Return the items a second that each resource allows one of so many replicas."""
        asked, a_host = self.asked, self.machine.replicas
        seconds = {
            "device": asked.items / device_items * (1 - self.query_share * self.hit_rate(replicas)),
            "host, engine process": _seconds(ENGINE_S, asked.items),
            "host, front process": _seconds(FRONT_S, asked.items),
            "network": max(self._sent, self._received) * 8 / (asked.network_gbps * 1e9) * a_host,
            "storage": (self._sent + self._received) / (asked.storage_mbps * 1e6) * a_host,
        }
        return {name: asked.items / each for name, each in seconds.items()}

    def replicas(self, device_items: float) -> int:
        """Return the fewest replicas that carry the load. More of them cache more, so they are found by halving."""

        def carried(count: int) -> float:
            return min(self.limits(count, device_items).values()) * self.asked.utilization

        fewer = range(1, math.ceil(self.items_per_second / carried(0)))  # as many carry it with nothing cached
        return 1 + bisect_left(fewer, self.items_per_second, key=lambda count: count * carried(count))

    def simulated(self, replicas: int, device_items: float) -> Simulated | None:
        """Simulate so many replicas; None if every request has a query of its own."""
        asked = self.asked
        if self._shares is None:
            return None
        if replicas > MAX_REPLICAS:
            raise PlanError(
                f"{replicas:,} replicas are needed, but at most {MAX_REPLICAS:,} can be simulated: plan part of the "
                "load, or leave out --distinct-queries."
            )
        request = self._request
        slowest = max(asked.items / device_items, _seconds(ENGINE_S, asked.items))
        shape = ReplicaShape(
            cache_tokens=self.cache_tokens,
            room=self._room,
            step_s=0.0,
            row_s=slowest / (request.query_tokens + request.item_tokens) * (1 - self.padded_share),
            front_s=_seconds(FRONT_S, asked.items),
        )
        scenario = Scenario(
            replicas=replicas,
            replica=shape,
            request=request,
            rate=self.items_per_second / asked.items,
            weight=asked.weight,
            balance_factor=asked.balance_factor,
        )
        return simulate_loss(scenario, self._shares, asked.simulated_requests)


def _seconds(cost: tuple[float, float], items: int) -> float:
    request, item = cost
    return request + item * items
