"""What limits the parts of a request on a CPU, measured beside it, and what each reaches of its own limit.

Products, attention and the head are limited by the rate of products, norms and RoPE by the rate at which memory is
read and written. The rest, which is copies, conversions and time in which no operation ran, need not be.
"""

import resource
import time
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mis_bench.profile.breakdown import by_clock
from mis_bench.profile.parts import GAPS, GLUE, PARTS, REST, part_of
from mis_bench.profile.records import ClockLimits, ClockPart
from mis_bench.profile.trace import REQUEST, DeviceTrace
from mis_bench.targets.target import Target
from mis_bench.workload import Workload
from mis_core import Engine
from mis_core.aot.roofline import least_flops_by_part, least_glue_bytes
from mis_core.models.config import ModelConfig, read_model_config

_COPIED = 64 * 2**20  # numbers of float32, far more than caches hold
_COPIES = 5


class KernelCounts(NamedTuple):
    """What the kernel counted of this process so far."""

    minor_faults: int
    major_faults: int
    system_s: float

    @classmethod
    def now(cls) -> "KernelCounts":
        """Read the counts."""
        found = resource.getrusage(resource.RUSAGE_SELF)
        return cls(found.ru_minflt, found.ru_majflt, found.ru_stime)


async def measure_limits(
    target: Target, engine: Engine, workload: Workload, trace: DeviceTrace, before: KernelCounts, after: KernelCounts
) -> ClockLimits | None:
    """Measure the limits of this machine now, and hold the parts of the traced requests against them.

    Args:
        target: Whom the requests were asked of; nothing is under way.
        engine: Behind it.
        workload: One like each of the traced requests.
        trace: Of these requests alone.
        before: What the kernel had counted when the trace began.
        after: What it had when the trace was over.

    Returns:
        None where products cannot be measured, layers are recurrent, or the workload is no score of token ids.
    """
    config = read_model_config(engine.directory, ignore_unknown=True)
    ours = await target.product_rate()
    if ours is None or config.recurrence is not None or workload.task != "score" or isinstance(workload.query, str):
        return None
    others = _pytorch_rate(config, engine.config.dtype)
    rates = {"MIS": ours} | ({} if others is None else {"PyTorch": others})
    copied = copy_rate()
    spans = [(mark.begin_ns, mark.end_ns) for mark in trace.marks if mark.name == REQUEST]
    work = _work(config, workload, engine.config.dtype)

    def part(name: str, seconds: float) -> ClockPart:
        all_work = len(spans) * work.get(name, 0.0)
        rate = copied if name == GLUE else max(rates.values())
        return ClockPart(name=name, seconds=seconds, work=all_work, limit_s=all_work / rate)

    return ClockLimits(
        parts=[part(*each) for each in clock_of_parts(by_clock(trace.operations, spans)).items()],
        product_rates=rates,
        bytes_per_s=copied,
        minor_faults=after.minor_faults - before.minor_faults,
        major_faults=after.major_faults - before.major_faults,
        system_s=after.system_s - before.system_s,
    )


def clock_of_parts(stages_ns: Mapping[str | None, float]) -> dict[str, float]:
    """Add up nanoseconds by stage, `by_clock`, to seconds by part; those of no part with a limit are the rest."""
    found = dict.fromkeys([*PARTS, REST, GAPS], 0.0)
    for stage, length in stages_ns.items():
        found[GAPS if stage is None else part_of(stage)] += length / 1e9
    return found


def copy_rate() -> float:
    """Return the most bytes a second that JAX's threads read and write when they add 1 to an array in its place."""
    add = jax.jit(lambda numbers: numbers + 1, donate_argnums=0)  # in new memory, page faults would count
    numbers = add(jnp.zeros(_COPIED, jnp.float32)).block_until_ready()
    best = 0.0
    for _ in range(_COPIES):
        began = time.perf_counter()
        numbers = add(numbers).block_until_ready()
        best = max(best, 2 * numbers.nbytes / (time.perf_counter() - began))
    return best


def _work(config: ModelConfig, workload: Workload, dtype: str) -> dict[str, float]:
    flops = least_flops_by_part(config, workload.request, normalised=not workload.apply_softmax)
    glue = least_glue_bytes(config, workload.request, jnp.dtype(dtype).itemsize)
    return {"products": flops.products, "attention": flops.attention, "head": flops.head, GLUE: glue}


def _pytorch_rate(config: ModelConfig, dtype: str) -> float | None:
    """Return the most operations a second of PyTorch's products; None where it is not installed."""
    try:
        from mis_bench.targets.pytorch import product_rate
    except ImportError:
        return None
    return product_rate(config.embed, config.mlp, dtype)
