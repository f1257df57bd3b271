"""What is asked of a capacity plan, and what it says."""

from pydantic import BaseModel

from mis_bench.capacity.simulated import Simulated


class PlanError(RuntimeError):
    """The load cannot be planned; the message names the option."""


class PlanRequest(BaseModel):
    """What to plan for.

    Attributes:
        items_per_day: Items to score.
        hours: Hours of a day within which they are scored, for which machines are rented.
        query: Tokens of a query.
        items: Items of a request.
        item_tokens: Tokens of an item.
        topology: Of a replica, a name in `mis_bench.capacity.planning.MACHINES`.
        model: A name in `mis_core.models.published.PUBLISHED`.
        dp: Devices of a replica that tokens are cut over.
        tp: Devices of a replica that weights are cut over.
        quantization: `none`, or `int8` of the layers' products.
        utilization: The part of what its bottleneck allows that a replica is given.
        price: Of a chip and hour, in any currency; None: no cost.
        network_gbps: Of a host, in 10^9 bits a second.
        storage_mbps: What a host reads and writes, in 10^6 bytes a second.
        distinct_queries: How many queries there are; 0: every request has a new one.
        zipf: Exponent of their popularity.
        cache_tokens: Capacity of a replica's KV cache; None: what memory allows.
        balance_factor: HAProxy's `hash-balance-factor`, in percent; 0: no bound.
        weight: Of a replica in HAProxy.
        simulated_requests: How many are simulated.
    """

    items_per_day: float
    hours: float = 24
    query: int = 2000
    items: int = 500
    item_tokens: int = 20
    topology: str = "v6e:1x1"
    model: str = "qwen3-0.6b"
    dp: int = 1
    tp: int = 1
    quantization: str = "none"
    utilization: float = 0.7
    price: float | None = None
    network_gbps: float = 10
    storage_mbps: float = 200
    distinct_queries: int = 0
    zipf: float = 1.0
    cache_tokens: int | None = None
    balance_factor: int = 200
    weight: int = 64
    simulated_requests: int = 50_000


class DeviceRate(BaseModel):
    """Items that one replica's devices score in a second, every query new: as expected, at best and at worst."""

    items_per_second: float
    best_items_per_second: float
    worst_items_per_second: float
    source: str


class Resource(BaseModel):
    """What limits a replica: how many items a second it allows, and the part of that which the plan uses."""

    name: str
    items_per_second: float
    used: float


class CapacityPlan(PlanRequest):
    """What the load takes.

    Attributes:
        requests_per_second: While it is scored.
        replicas: How many.
        chips_best: Chips if the device is as fast as the estimate's best; likewise `chips_worst`.
        hit_rate: The part of query tokens that is cached, by Che's approximation for all replicas together.
        query_share: The part of a request's arithmetic that a cached query saves.
        resources: What limits a replica, the tightest first.
        bottleneck: Name of the first.
        cost_per_million_items: In the currency of the price; None without one.
        simulated: What replicas behind HAProxy would do; None without `distinct_queries`.
    """

    device: DeviceRate
    requests_per_second: float
    replicas: int
    chips: int
    chips_best: int
    chips_worst: int
    hosts: int
    hit_rate: float
    query_share: float
    resources: list[Resource]
    bottleneck: str
    cost_per_million_items: float | None
    simulated: Simulated | None

    def __str__(self) -> str:
        """Return the figures, a line each."""
        cost = self.cost_per_million_items
        lines = [
            f"{self.items_per_day:,.0f} items a day in {self.hours:g} h: {self.requests_per_second:,.1f} requests/s of "
            f"{self.query} + {self.items} x {self.item_tokens} tokens, {self.model} on {self.topology}",
            f"device: {self.device.items_per_second:,.0f} items/s a replica with new queries ({self.device.source})",
            "",
            f"{self.chips:10,} chips, {self.chips_best:,} at best, {self.chips_worst:,} at worst, "
            f"{self.utilization:.0%} used",
            f"{self.hosts:10,} hosts, {self.replicas:,} replicas",
            *([] if cost is None else [f"{cost:10.4g} for a million items, at {self.price:g} a chip and hour"]),
            f"{self.hit_rate:10.1%} of query tokens cached, which saves {self.hit_rate * self.query_share:.1%} of "
            "the work",
            "",
            f"Bottleneck: {self.bottleneck}",
            *(
                f"{each.items_per_second:10,.0f} items/s a replica, {each.used:6.1%} used: {each.name}"
                for each in self.resources
            ),
        ]
        return "\n".join([*lines, *([] if self.simulated is None else ["", str(self.simulated)])])
