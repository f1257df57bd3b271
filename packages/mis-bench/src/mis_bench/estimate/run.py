"""`estimate`: from a topology, a model and a workload to seconds by stage and items per second."""

import json
import math
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, Field

from mis_bench.workload import Workload, build_workload
from mis_core.aot.roofline import least_bytes, least_flops
from mis_core.models.published import PUBLISHED
from mis_kernels.aot.chips import CHIPS, Chip
from mis_kernels.aot.launch import run_job
from mis_kernels.aot.price import price_attention, price_norm_rope, price_page_writes, price_program
from mis_kernels.aot.targets import TARGETS, Target, environment

# The text of a program with its embedding lookup, or copies, on the SparseCore cannot be read back.
_READABLE = " --xla_tpu_offload_gather_to_sparsecore=false --xla_tpu_enable_offloading_copy_to_sparsecore=false"

TOPOLOGIES = {"v5e:1x1": "v5e", "v6e:1x1": "v6e:1x1", "v6e:2x2": "v6e:2x2", "v6e:2x4": "v6e:2x4", "v7x:1x1x1": "v7x"}
"""Topologies by the names that users give them; `v7x:1x1x1` is one of the two devices of a chip."""

NOT_MODELLED = (
    "stalls inside a kernel or fusion, and waiting for memory where copies do not hide behind arithmetic",
    "time between operations, launches, and the host (4 ms a canonical request, overlapped with the device)",
    "overlap of exchanges between devices with arithmetic, and contention for links and memory",
    "clocks below the nominal one",
)

PUBLISHED_FIGURES: dict[tuple[str | int, ...], tuple[float, str]] = {
    ("qwen3-0.6b", "canonical-2000-500-20", "v6e:1x1", 1, 1): (
        526.0,
        "sglang-jax fork, prefill and extend, one v6e chip, 2026-02",
    ),
    ("qwen3-0.6b", "canonical-2000-500-20", "v6e:2x2", 1, 4): (141.0, "sglang-jax fork, packed chunks, TP 4, 2026-02"),
}
"""Items a second that others measured, and who, by model, workload, topology, dp and tp."""


class EstimateError(RuntimeError):
    """The compiler, or the topology, refused something; the message says what."""


class Stage(BaseModel):
    """A stage's part of one request."""

    name: str
    milliseconds: float
    share: float


class Estimate(BaseModel):
    """What a workload would take.

    Attributes:
        milliseconds: Device time of one request, when requests follow each other without a gap.
        items_per_second: Of all devices together.
        roofline_items_per_second: By the nominal rates of arithmetic and memory, whichever is less.
        roofline_share: The first by the second.
        padded_share: Part of the steps' rows that is padding.
        memory_bytes: Arguments and temporaries of the largest step on each device, weights and cache included.
        published: A figure that others measured for the same job, or None.
    """

    topology: str
    model: str
    workload: str
    workload_sha256: str
    dp: int
    tp: int
    step_tokens: int
    requests: int
    apply_softmax: bool
    steps: int
    milliseconds: float
    items_per_second: float
    stages: list[Stage]
    roofline_items_per_second: float
    roofline_share: float
    padded_share: float
    memory_bytes: int
    memory_limit_bytes: float
    not_modelled: list[str] = Field(default_factory=lambda: list(NOT_MODELLED))
    published: str | None = None


def estimate(
    topology: str,
    model: str,
    workload_name: str,
    *,
    dp: int = 1,
    tp: int = 1,
    step_tokens: int = 4096,
    requests: int = 8,
    apply_softmax: bool = False,
) -> Estimate:
    """Plan, compile and price.

    Args:
        topology: A name in `TOPOLOGIES`.
        model: A name in `mis_core.models.published.PUBLISHED`.
        workload_name: As `build_workload` takes it.
        dp: Devices that tokens are cut over.
        tp: Devices that weights and KV heads are cut over.
        step_tokens: Token budget of a step on each device.
        requests: Requests that arrive together, each with a query of its own.
        apply_softmax: Ask for a softmax over the labels instead of full-vocabulary probabilities.

    Raises:
        EstimateError: the topology or the model does not exist, has too few devices, the workload is text, or
            the compiler refused a program.
        WorkloadNameError: the workload's name has another form.
    """
    for name, known, what in ((topology, TOPOLOGIES, "topology"), (model, PUBLISHED, "model")):
        if name not in known:
            raise EstimateError(f"There is no {what} {name!r}; choose from {', '.join(known)}.")
    devices = math.prod(int(n) for n in topology.partition(":")[2].split("x"))
    if dp * tp > devices:
        raise EstimateError(f"dp {dp} x tp {tp} needs {dp * tp} devices; {topology} has {devices}.")
    target, workload = TARGETS[TOPOLOGIES[topology]], build_workload(workload_name)
    if isinstance(workload.query, str):
        raise EstimateError(f"{workload_name} is text; an estimate has no tokenizer and needs token ids.")
    job = {
        "topology": topology,
        "target": TOPOLOGIES[topology],
        "model": model,
        "workload": workload_name,
        "dp": dp,
        "tp": tp,
        "step_tokens": step_tokens,
        "requests": requests,
        "apply_softmax": apply_softmax,
    }
    bodies = [workload.another(number).request | {"apply_softmax": apply_softmax} for number in range(requests)]
    compiled = _compile(target, job | {"requests": bodies})
    bundles = _schedules(job["target"], compiled["heads"])
    seconds = _price(compiled, bundles, target, PUBLISHED[model].layers, CHIPS[target.chip], dp)
    return _summary(job, workload, compiled, seconds, target)


def _compile(target: Target, job: dict[str, Any]) -> dict[str, Any]:
    if find_spec("libtpu") is None:
        raise EstimateError("An estimate needs the TPU's compiler: pip install libtpu.")
    env = environment(target, None)
    env["LIBTPU_INIT_ARGS"] += _READABLE
    command = [sys.executable, "-m", "mis_core.aot.steps"]
    done = subprocess.run(command, input=json.dumps(job), env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EstimateError("The step was not compiled:\n" + "\n".join(done.stderr.strip().splitlines()[-15:]))
    return json.loads(done.stdout.strip().splitlines()[-1])


def _schedules(topology: str, heads: list[int]) -> dict[str, dict[str, int]]:
    """Compile the kernels alone; return the bundles of attention's tiles and of the norm and RoPE kernel."""
    try:
        (attention,) = run_job(topology, {"what": "kernels", "layouts": [heads], "dtypes": ["bfloat16"]})
        (glue,) = run_job(topology, {"what": "glue", "layouts": [heads]})
    except RuntimeError as error:
        raise EstimateError(str(error)) from None
    return {"attention": attention["bundles"], "norm_rope": glue["bundles"]}


def _price(
    compiled: dict[str, Any], bundles: dict[str, dict[str, int]], target: Target, layers: int, chip: Chip, dp: int
) -> dict[str, float]:
    """Return the seconds of all steps by stage."""
    clock = target.clock_ghz * 1e9
    _, kv_heads, head_dim = compiled["heads"]
    stages: dict[str, float] = defaultdict(float)
    heads = {
        name: price_program(compiled[name]["operations"], clock, chip, writes_pages=False)
        for name in ("labels", "normalise")
    }
    for step in compiled["steps"]:
        program = compiled["programs"][str(step["size"])]["operations"]
        priced = price_program(program, clock, chip, writes_pages=step["writes_pages"])
        for stage, seconds in priced.items():
            stages[stage] += seconds
        stages["attention"] += layers * price_attention(
            step, bundles["attention"], kv_heads, compiled["block_tokens"], clock
        )
        stages["norm and RoPE"] += layers * price_norm_rope(step["size"], bundles["norm_rope"]["step"], kv_heads, clock)
        if step["writes_pages"]:
            stages["write_pages"] += layers * price_page_writes(step["size"] * dp, kv_heads, head_dim, chip)
        for name, calls in (("labels", step["label_calls"]), ("normalise", step["normaliser_calls"])):
            stages["head"] += calls * sum(heads[name].values())
    return dict(stages)


def _summary(
    job: dict[str, Any], workload: Workload, compiled: dict[str, Any], stages: dict[str, float], target: Target
) -> Estimate:
    requests, devices, chip = job["requests"], job["dp"] * job["tp"], CHIPS[target.chip]
    total = sum(stages.values())
    items = len(workload.items) * requests
    config = PUBLISHED[job["model"]]
    normalised = any(step["normaliser_calls"] for step in compiled["steps"])
    flops = requests * least_flops(config, workload.request, normalised=normalised) / devices
    least = max(flops / chip.flops, least_bytes(config) / job["tp"] / chip.bytes)
    largest = max(compiled["programs"].values(), key=lambda program: program["temporary_bytes"])
    published = PUBLISHED_FIGURES.get(tuple(job[name] for name in ("model", "workload", "topology", "dp", "tp")))
    rows = sum(step["size"] * job["dp"] for step in compiled["steps"])
    return Estimate(
        topology=job["topology"],
        model=job["model"],
        workload=job["workload"],
        workload_sha256=workload.sha256,
        dp=job["dp"],
        tp=job["tp"],
        step_tokens=job["step_tokens"],
        requests=requests,
        apply_softmax=job["apply_softmax"],
        steps=len(compiled["steps"]),
        milliseconds=total / requests * 1e3,
        items_per_second=items / total,
        stages=[
            Stage(name=name, milliseconds=seconds / requests * 1e3, share=seconds / total)
            for name, seconds in sorted(stages.items(), key=lambda pair: -pair[1])
        ],
        roofline_items_per_second=items / least,
        roofline_share=least / total,
        padded_share=1 - sum(step["new_tokens"] for step in compiled["steps"]) / rows,
        memory_bytes=largest["argument_bytes"] + largest["temporary_bytes"],
        memory_limit_bytes=chip.memory,
        published=None if published is None else f"{published[0]:g} items/s ({published[1]})",
    )
