"""What is asked of a capacity plan, and what it says."""

from typing import Literal

from pydantic import BaseModel, Field


class PlanError(RuntimeError):
    """The load cannot be planned; the message names the option."""


class PlanRequest(BaseModel):
    """What to plan for; every field is an option of `mis-bench plan`."""

    items_per_day: float = Field(gt=0, description="Items to score a day, 1e9 for instance.")
    hours: float = Field(default=24, gt=0, le=24, description="Hours of a day in which they are scored.")
    query: int = Field(default=2000, ge=1, description="Tokens of a query.")
    items: int = Field(default=500, ge=1, description="Items of a request.")
    item_tokens: int = Field(default=20, ge=1, description="Tokens of an item.")
    topology: str = Field(
        default="v6e:1x1", description="Chips of a replica: v5e:1x1, v6e:1x1, v6e:2x2, v6e:2x4 or v7x:1x1x1."
    )
    model: str = Field(default="qwen3-0.6b", description="Name of a published model, such as qwen3-8b.")
    dp: int = Field(default=1, ge=1, description="Data parallelism: devices of a replica that split tokens.")
    tp: int = Field(
        default=1, ge=1, description="Tensor parallelism: devices of a replica that weights are sharded over."
    )
    quantization: Literal["none", "int8"] = Field(
        default="none", description="Data type of the matrix products in layers."
    )
    utilization: float = Field(default=0.7, gt=0, le=1, description="Share of the bottleneck that the load may take.")
    price: float | None = Field(
        default=None, ge=0, description="Hourly price of a chip, in any currency. Default: no cost."
    )
    network_gbps: float = Field(default=10, gt=0, description="Network bandwidth of a host, in 10^9 bits a second.")
    storage_mbps: float = Field(default=200, gt=0, description="Storage bandwidth of a host, in 10^6 bytes a second.")
    distinct_queries: int = Field(
        default=0, ge=0, le=10**7, description="Number of distinct queries. 0 means that every request has its own."
    )
    zipf: float = Field(default=1.0, ge=0, le=5, description="Exponent of Zipf's law for how often each query comes.")
    cache_tokens: int | None = Field(
        default=None, ge=64, description="Tokens of a replica's KV cache. Default: as many as memory allows."
    )
    balance_factor: int = Field(
        default=200, ge=0, le=10_000, description="Balance factor of HAProxy, in percent. 0 means no bound."
    )
    weight: int = Field(default=64, ge=1, le=256, description="Weight of a replica in HAProxy.")
    simulated_requests: int = Field(
        default=50_000, ge=100, le=10**6, description="Number of requests to simulate, with --distinct-queries."
    )


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


class Lost(BaseModel):
    """What the loss of a replica does."""

    failed: int = Field(description="Requests that the lost replica held.")
    hit_rate: float = Field(description="Hit rate of the first twentieth of all requests after the loss.")
    p99_ms: float = Field(description="Latency of the same requests.")
    late_hit_rate: float = Field(description="Hit rate of the last quarter of all requests.")


class Simulated(BaseModel):
    """Figures of the first half of the requests, and of the second, before which a replica was lost."""

    requests: int = Field(description="Requests of both halves.")
    hit_rate: float = Field(description="The part of query tokens that was cached.")
    spill_rate: float = Field(description="Requests that the bound sent elsewhere than to their query's replica.")
    p50_ms: float = Field(description="Latency without the network.")
    p99_ms: float
    busiest: float = Field(description="Ratio of the busiest replica's requests to an average one's.")
    padded_share: float = Field(description="Part of the rows of all steps that was padding, of both halves.")
    lost: Lost | None = Field(description="The second half. None for a single replica.")

    def __str__(self) -> str:
        """Return the figures, a line each."""
        lines = [
            f"Simulated, {self.requests:,} requests:",
            f"{self.hit_rate:10.1%} of query tokens cached, {self.spill_rate:.1%} of requests sent elsewhere by the "
            "bound",
            f"{self.p50_ms:10,.0f} ms at the median, {self.p99_ms:,.0f} ms p99; the busiest replica has "
            f"{self.busiest:.2f} times the average; {self.padded_share:.1%} of rows are padding",
        ]
        if (lost := self.lost) is not None:
            lines.append(
                f"{lost.hit_rate:10.1%} cached after a replica is lost, {lost.late_hit_rate:.1%} later; "
                f"{lost.p99_ms:,.0f} ms p99, {lost.failed} failed"
            )
        return "\n".join(lines)


class CapacityPlan(PlanRequest):
    """What the load takes."""

    device: DeviceRate
    requests_per_second: float = Field(description="Requests a second while they are scored.")
    replicas: int
    chips: int
    chips_best: int = Field(description="Chips if the device is as fast as the estimate's best.")
    chips_worst: int
    hosts: int
    hit_rate: float = Field(description="Part of query tokens that is cached, by Che's approximation for one cache.")
    query_share: float = Field(description="The part of a request's arithmetic that a cached query saves.")
    padded_share: float = Field(
        description="Part of the rows of steps that is padding while a replica has all it can do, with new queries."
    )
    state_slots: int = Field(description="Slots for recurrent states of a replica. 0 without recurrent layers.")
    state_bytes: int = Field(description="Bytes of such a slot.")
    resources: list[Resource] = Field(description="What limits a replica, the tightest first.")
    bottleneck: str
    cost_per_million_items: float | None = Field(description="Cost in the currency of the price. None without a price.")
    simulated: Simulated | None = Field(description="Replicas behind HAProxy; None without `distinct_queries`.")

    def __str__(self) -> str:
        """Return the figures, a line each."""
        cost = self.cost_per_million_items
        states = f"{self.state_slots:10,} slots for recurrent states a replica, {self.state_bytes / 1e6:.1f} MB each"
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
            *([states] if self.state_slots else []),
            f"{self.padded_share:10.1%} of the rows of full steps are padding, which the device's rate includes",
            "",
            f"Bottleneck: {self.bottleneck}",
            *(
                f"{each.items_per_second:10,.0f} items/s a replica, {each.used:6.1%} used: {each.name}"
                for each in self.resources
            ),
        ]
        return "\n".join([*lines, *([] if self.simulated is None else ["", str(self.simulated)])])
