"""What a workload would take on TPUs, from `mis_core.aot.estimate`, as figures of one request."""

import math
from importlib.util import find_spec

from mis_bench.estimate.serving import EstimateRequest, ServingEstimate, Stage
from mis_bench.workload import build_workload
from mis_core.aot.estimate import price_requests
from mis_core.aot.roofline import least_bytes, least_flops
from mis_core.errors import ConfigError
from mis_core.models.published import PUBLISHED
from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.targets import TARGETS

TOPOLOGIES = {"v5e:1x1": "v5e", "v6e:1x1": "v6e:1x1", "v6e:2x2": "v6e:2x2", "v6e:2x4": "v6e:2x4", "v7x:1x1x1": "v7x"}
"""Topologies by the names that users give them; `v7x:1x1x1` is one of the two devices of a chip."""


class EstimateError(RuntimeError):
    """The compiler, or the topology, refused something; the message says what."""


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
        raise EstimateError(f"{asked.workload} asks for {workload.task}; only scores are estimated.")
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
        state_slots=times.state_slots,
        state_bytes=times.state_bytes,
    )
