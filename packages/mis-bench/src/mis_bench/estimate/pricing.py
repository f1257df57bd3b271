"""`estimate`: what a workload would take on TPUs, from `mis_core.aot.estimate`, as figures of one request."""

import math
from importlib.util import find_spec
from typing import Literal

from pydantic import BaseModel, Field

from mis_bench.workload import build_workload
from mis_core.aot.estimate import price_requests
from mis_core.aot.roofline import least_bytes, least_flops
from mis_core.errors import ConfigError
from mis_core.models.published import PUBLISHED
from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.targets import TARGETS

TOPOLOGIES = {"v5e:1x1": "v5e", "v6e:1x1": "v6e:1x1", "v6e:2x2": "v6e:2x2", "v6e:2x4": "v6e:2x4", "v7x:1x1x1": "v7x"}
"""Topologies by the names that users give them; `v7x:1x1x1` is one of the two devices of a chip."""

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


class EstimateError(RuntimeError):
    """The compiler, or the topology, refused something; the message says what."""


class EstimateRequest(BaseModel):
    """What to estimate.

    Attributes:
        topology: A name in `TOPOLOGIES`.
        model: A name in `mis_core.models.published.PUBLISHED`.
        workload: As `build_workload` takes it.
        dp: Devices that tokens are cut over.
        tp: Devices that weights and KV heads are cut over.
        step_tokens: Token budget of a step on each device.
        quantization: `none`, or `int8` of the layers' products.
        requests: Requests that arrive together, each with a query of its own.
        apply_softmax: Ask for a softmax over the labels instead of full-vocabulary probabilities.
    """

    topology: str
    model: str
    workload: str
    dp: int = 1
    tp: int = 1
    step_tokens: int = 4096
    quantization: Literal["none", "int8"] = "none"
    requests: int = 8
    apply_softmax: bool = False


class Stage(BaseModel):
    """A stage's part of one request: as expected, at best and at worst."""

    name: str
    milliseconds: float
    best_milliseconds: float
    worst_milliseconds: float
    share: float


class ServingEstimate(EstimateRequest):
    """What a workload would take.

    Attributes:
        milliseconds: Device time of one request, when requests follow each other without a gap, as expected.
        items_per_second: Of all devices together, as expected.
        best_items_per_second: If everything that is not known is at its best.
        worst_items_per_second: If it is at its worst.
        roofline_items_per_second: By the nominal rates of arithmetic in bfloat16 and of memory, whichever is less.
        roofline_share: The first by the second.
        padded_share: Part of the steps' rows that is padding.
        memory_bytes: Arguments and temporaries of the largest step on each device, weights and cache included.
    """

    workload_sha256: str
    steps: int
    milliseconds: float
    items_per_second: float
    best_items_per_second: float
    worst_items_per_second: float
    stages: list[Stage]
    roofline_items_per_second: float
    roofline_share: float
    padded_share: float
    memory_bytes: int
    memory_limit_bytes: float
    assumed: list[str] = Field(default_factory=lambda: list(ASSUMED))
    not_modelled: list[str] = Field(default_factory=lambda: list(NOT_MODELLED))

    def __str__(self) -> str:
        """Return the figures, a line each, and the breakdown."""
        memory = f"{self.memory_bytes / 2**20:10,.0f} MiB of {self.memory_limit_bytes / 2**20:,.0f} a device"
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


def estimate(asked: EstimateRequest) -> ServingEstimate:
    """Plan, compile and price.

    Raises:
        EstimateError: the topology or the model does not exist, has too few devices, the workload is text or
            another task than scores, or the compiler refused a program.
        WorkloadNameError: the workload's name has another form.
    """
    dp, tp, requests = asked.dp, asked.tp, asked.requests
    for name, known, what in ((asked.topology, TOPOLOGIES, "topology"), (asked.model, PUBLISHED, "model")):
        if name not in known:
            raise EstimateError(f"There is no {what} {name!r}; choose from {', '.join(known)}.")
    devices = math.prod(int(n) for n in asked.topology.partition(":")[2].split("x"))
    if dp * tp > devices:
        raise EstimateError(f"dp {dp} x tp {tp} needs {dp * tp} devices; {asked.topology} has {devices}.")
    workload = build_workload(asked.workload)
    if isinstance(workload.query, str):
        raise EstimateError(f"{asked.workload} is text; an estimate has no tokenizer and needs token ids.")
    if workload.task != "score":
        raise EstimateError(f"{asked.workload} asks for {workload.task}; an estimate is of scores.")
    if find_spec("libtpu") is None:
        raise EstimateError("An estimate needs the TPU's compiler: pip install libtpu.")
    bodies = [workload.another(number).request | {"apply_softmax": asked.apply_softmax} for number in range(requests)]
    target = TOPOLOGIES[asked.topology]
    try:
        times = price_requests(
            target,
            asked.model,
            bodies,
            dp=dp,
            tp=tp,
            step_tokens=asked.step_tokens,
            quantization=asked.quantization,
        )
    except (RuntimeError, ConfigError) as error:
        raise EstimateError(str(error)) from None
    config, chip = PUBLISHED[asked.model], CHIPS[TARGETS[target].chip]
    flops = requests * least_flops(config, workload.request, normalised=not asked.apply_softmax) / (dp * tp)
    least = max(flops / chip.flops, least_bytes(config) / tp / chip.bytes)
    items, seconds = workload.num_items * requests, times.seconds
    each = {name: part * (1e3 / requests) for name, part in times.stages.items()}
    stages = [
        Stage(
            name=name,
            milliseconds=part.expected,
            best_milliseconds=part.best,
            worst_milliseconds=part.worst,
            share=times.stages[name].expected / seconds.expected,
        )
        for name, part in sorted(each.items(), key=lambda pair: -pair[1].expected)
    ]
    return ServingEstimate(
        **asked.model_dump(),
        workload_sha256=workload.sha256,
        steps=times.steps,
        milliseconds=seconds.expected / requests * 1e3,
        items_per_second=items / seconds.expected,
        best_items_per_second=items / seconds.best,
        worst_items_per_second=items / seconds.worst,
        stages=stages,
        roofline_items_per_second=items / least,
        roofline_share=least / seconds.expected,
        padded_share=times.padded_share,
        memory_bytes=times.memory_bytes,
        memory_limit_bytes=chip.memory,
    )
