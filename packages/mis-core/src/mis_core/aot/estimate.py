"""What requests would take on TPUs that this machine does not have.

The real scheduler plans the requests, the real step is compiled for the topology by the TPU's compiler, and every
operation of it is priced: by the compiler's own estimate in cycles, for Pallas kernels by their schedule, for copies
beside them by their bytes. What is not known makes a range.
`docs/runbooks/estimate.md` has the method and its limits.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mis_core.aot.recurrence import recurrent_sizes
from mis_core.models.config import ModelConfig
from mis_core.models.layers import windows_of
from mis_core.models.parallel import spread_heads
from mis_core.models.published import PUBLISHED
from mis_kernels.aot.price import kernel_schedules, product_schedules
from mis_kernels.aot.programs import ProductSize
from mis_kernels.aot.ranges import Range, total
from mis_kernels.aot.recurrence import recurrence_schedules
from mis_kernels.aot.targets import TARGETS, environment
from mis_kernels.backends.tpu import projection
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.products import fits

# The text of a program with its embedding lookup, or copies, on the SparseCore cannot be read back.
_READABLE = " --xla_tpu_offload_gather_to_sparsecore=false --xla_tpu_enable_offloading_copy_to_sparsecore=false"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Device time of requests that arrive together.

    Attributes:
        steps: Steps that all of them take.
        stages: Seconds of all steps, by stage: at best, as expected, at worst.
        padded_share: Part of the steps' rows that is padding.
        memory_bytes: Arguments and temporaries of the largest step on each device, weights and cache included.
        state_slots: Slots for recurrent states among them; 0: no layer is recurrent.
        state_bytes: Bytes of such a slot.
    """

    steps: int
    stages: dict[str, Range]
    padded_share: float
    memory_bytes: int
    state_slots: int = 0
    state_bytes: int = 0

    @property
    def seconds(self) -> Range:
        """All stages together."""
        return total(self.stages.values())


def product_sizes(spread: ModelConfig, tensor: int, chip: str) -> dict[str, ProductSize]:
    """Return the layers' products that a kernel makes on each of `tensor` devices of a chip, by name.

    The heads of the shape are spread over the devices. XLA makes the products of weights that the kernel does not take.
    """
    embed, mlp, here = spread.embed, spread.mlp // tensor, spread.attention.on_device(tensor)
    heads, qkv = here.heads * here.head_dim, (here.heads + 2 * here.kv_heads) * here.head_dim
    rotated = here if projection.is_faster(here, chip) else None
    # Parts of a product are summed over the devices before a residual is added, or the sum is normalised.
    alone = tensor == 1 and not spread.family.norms_outputs
    sizes = {
        "qkv": ProductSize(embed, qkv, 1, normed=True, residual=False, heads=rotated),
        "out": ProductSize(heads, embed, 1, normed=False, residual=alone),
        "gate_up": ProductSize(embed, mlp, 2, normed=True, residual=False, gate=spread.family.gate),
        "down": ProductSize(mlp, embed, 1, normed=False, residual=alone),
    }
    if spread.family.gates_attention:
        sizes["attention_gate"] = ProductSize(embed, heads, 1, normed=True, residual=False)
    if (recurrence := spread.recurrence) is not None:
        values = recurrence.value_heads * recurrence.value_dim // tensor
        sizes["qkvz"] = ProductSize(embed, recurrence.channels // tensor + values, 1, normed=True, residual=False)
        sizes["recurrent_out"] = ProductSize(values, embed, 1, normed=False, residual=alone)
    return {name: size for name, size in sizes.items() if fits(size.depth, size.columns)}


def price_requests(
    target: str,
    model: str,
    requests: Sequence[Mapping[str, Any]],
    *,
    dp: int,
    tp: int,
    step_tokens: int,
    quantization: str = "none",
) -> StepTimes:
    """Plan, compile and price.

    Args:
        target: A name in `mis_kernels.aot.targets.TARGETS`.
        model: A name in `PUBLISHED`.
        requests: Bodies of `POST /v1/score`, of token ids.
        dp: Devices that tokens are cut over.
        tp: Devices that weights and KV heads are cut over.
        step_tokens: Token budget of a step on each device.
        quantization: `int8`: of the layers' products; `none`.

    Raises:
        RuntimeError: the compiler refused a program; carries the end of its output.
        ConfigError: the model cannot be cut over so many devices.
    """
    spread = spread_heads(PUBLISHED[model], tp)
    heads = spread.attention.on_device(tp)
    rows = TpuBackend.normalised_rows
    window = min((window for window in windows_of(spread.layers) if window), default=None)
    schedules = kernel_schedules(
        target, heads, rows=rows, embed=spread.embed, vocab=spread.head_rows, window=window, cap=spread.attention_cap,
        head_cap=spread.logit_cap,
    )  # fmt: skip
    sizes = product_sizes(spread, tp, TARGETS[target].chip) if quantization == "int8" else {}
    products = product_schedules(target, list(sizes.values())) if sizes else []
    recurrent = recurrent_sizes(spread, tp, step_tokens)
    recurrences = recurrence_schedules(target, list(recurrent.values()))
    job = {
        "products": {
            name: (sizes[name], [each._asdict() for each in schedule])
            for name, schedule in zip(sizes, products, strict=True)
        },
        "recurrence": {
            heads: [each._asdict() for each in schedule]
            for heads, schedule in zip(recurrent, recurrences, strict=True)
        },
        "quantization": quantization, "target": target, "model": model, "requests": list(requests), "dp": dp, "tp": tp,
        "step_tokens": step_tokens, "attention": schedules.attention._asdict(),
        "mixed_attention": schedules.mixed_attention._asdict(),
        "norm_rope": schedules.norm_rope, "log_sum_exp": schedules.log_sum_exp and schedules.log_sum_exp._asdict(),
    }  # fmt: skip
    env = environment(TARGETS[target], None)
    env["LIBTPU_INIT_ARGS"] += _READABLE
    command = [sys.executable, "-P", "-m", "mis_core.aot.steps"]
    done = subprocess.run(command, input=json.dumps(job), env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError("The step was not compiled:\n" + "\n".join(done.stderr.strip().splitlines()[-15:]))
    found = json.loads(done.stdout.strip().splitlines()[-1])
    stages = {name: Range(*seconds) for name, seconds in found["stages"].items()}
    return StepTimes(**found | {"stages": stages})
