"""What is asked of an estimate, and what it says."""

from typing import Literal

from pydantic import BaseModel, Field

from mis_bench.workload import CANONICAL

NOT_MODELLED = (
    "the host (4 ms a canonical request, overlapped with the device)",
    "overlap of exchanges between devices with arithmetic, and contention for links and memory",
    "clocks below the nominal one",
)

ASSUMED = (
    "matrix units that push back 0, half or all of what units without a queue would",
    "none, 2 % or all of a context's tiles in scattered pages",
    "0.3, 0.4 or 0.8 us until a copy from HBM begins to arrive, and 100, 83 or 70 % of its nominal rate",
    "0, 10 or 25 us between programs",
)
"""What lies between best, expected and worst; `mis_kernels.aot.price` has the values."""


class EstimateRequest(BaseModel):
    """What to estimate; every field is an option of `mis-bench estimate`."""

    topology: str = Field(default="v6e:1x1", description="Chips: v5e:1x1, v6e:1x1, v6e:2x2, v6e:2x4 or v7x:1x1x1.")
    model: str = Field(default="qwen3-0.6b", description="Name of a published model, such as qwen3-8b.")
    workload: str = Field(default=CANONICAL, description="Workload: a NAME as for `mis-bench workload`.")
    dp: int = Field(default=1, ge=1, description="Data parallelism: number of devices that split tokens.")
    tp: int = Field(default=1, ge=1, description="Tensor parallelism: devices that weights are sharded over.")
    step_tokens: int = Field(default=4096, ge=256, description="Token budget of a step on each device.")
    quantization: Literal["none", "int8"] = Field(
        default="none", description="Data type of the matrix products in layers."
    )
    requests: int = Field(default=8, ge=1, description="Number of requests that arrive together.")
    apply_softmax: bool = Field(
        default=False, description="Score a softmax over the labels, not full-vocabulary probabilities."
    )


class Stage(BaseModel):
    """A stage's part of one request: as expected, at best and at worst."""

    name: str
    milliseconds: float
    best_milliseconds: float
    worst_milliseconds: float
    share: float


class ServingEstimate(EstimateRequest):
    """What a workload would take, of all devices together; as expected, unless a name says otherwise."""

    workload_sha256: str
    steps: int
    milliseconds: float = Field(description="Device time of one request, when they follow each other without a gap.")
    items_per_second: float
    best_items_per_second: float = Field(description="Items a second if every unknown is at its best.")
    worst_items_per_second: float = Field(description="Items a second if every unknown is at its worst.")
    stages: list[Stage]
    roofline_items_per_second: float = Field(
        description="Items a second at the nominal rates of arithmetic in bfloat16 and of memory, whichever is less."
    )
    roofline_share: float
    padded_share: float = Field(description="Part of the steps' rows that is padding.")
    memory_bytes: int = Field(
        description="Arguments and temporaries of the largest step on a device, weights and cache included."
    )
    memory_limit_bytes: float
    state_slots: int = Field(default=0, description="Slots for recurrent states on a device, if layers are recurrent.")
    state_bytes: int = Field(default=0, description="Bytes of such a slot.")
    assumed: list[str] = Field(default_factory=lambda: list(ASSUMED))
    not_modelled: list[str] = Field(default_factory=lambda: list(NOT_MODELLED))

    def __str__(self) -> str:
        """Return the figures, a line each, and the breakdown."""
        memory = f"{self.memory_bytes / 2**20:10,.0f} MiB of {self.memory_limit_bytes / 2**20:,.0f} a device"
        states = f"{self.state_slots:10,} slots for recurrent states a device, {self.state_bytes / 1e6:.1f} MB each"
        lines = (
            f"{self.workload}, {self.model} on {self.topology}, dp {self.dp}, tp {self.tp}, bfloat16, "
            + ("products in int8, " if self.quantization == "int8" else "")
            + ("softmax over the labels" if self.apply_softmax else "full-vocabulary probabilities"),
            f"{self.requests} requests in {self.steps} steps of up to {self.step_tokens} tokens a device, "
            f"{self.padded_share:.1%} padding",
            "",
            f"{self.items_per_second:10,.0f} items/s expected, {self.worst_items_per_second:,.0f} at worst, "
            f"{self.best_items_per_second:,.0f} at best",
            f"{self.milliseconds:10.2f} ms a request",
            f"{self.roofline_share:10.0%} of the roofline in bfloat16, {self.roofline_items_per_second:,.0f} items/s",
            f"{memory}, with weights and cache",
            *([states] if self.state_slots else []),
            "",
            *(
                f"{stage.milliseconds:10.2f} ms {stage.share:5.1%}  {stage.name}"
                f" ({stage.best_milliseconds:.2f} to {stage.worst_milliseconds:.2f})"
                for stage in self.stages
            ),
            "",
            "Between best and worst: " + "; ".join(self.assumed) + ".",
            "Not modelled: " + "; ".join(self.not_modelled) + ".",
        )
        return "\n".join(lines)
