"""Our engine in this process."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from pydantic import ConfigDict, create_model

import mis_core
import mis_kernels
from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.asking import decided, decided_by_system_one, ranked
from mis_bench.targets.blocking import BlockingTarget
from mis_bench.targets.products import ROWS, best_rate
from mis_bench.targets.spec import read_options
from mis_bench.targets.target import About, Layout, Reply, Scores, TargetUnavailable
from mis_bench.workload import Task, Workload
from mis_core import Engine
from mis_core.config import EngineConfig
from mis_core.errors import MisError
from mis_core.models.config import read_model_config
from mis_core.models.parallel import packs
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_core.tasks.decide.task import DECIDE
from mis_core.tasks.path.service import InlineService, run_blocking
from mis_core.tasks.rerank.task import RERANK
from mis_core.tasks.score.task import SCORE
from mis_core.tasks.text.completion import COMPLETE
from mis_kernels.backends import choose
from mis_kernels.weights import weight_of

_TASKS: Mapping[Task, Any] = {
    "score": SCORE,
    "rerank": RERANK,
    "decisions": DECIDE,
    "systemone": SYSTEM_ONE,
    "loglikelihoods": COMPLETE,
}
_READS = {"rerank": ranked, "decisions": decided, "systemone": decided_by_system_one}


def engine_config(model: Path, options: Mapping[str, str]) -> EngineConfig:
    """Read fields of `EngineConfig` from text, without loading anything; raises `TargetUnavailable`."""
    fields: Any = {field.name: (field.type, None) for field in dataclasses.fields(EngineConfig)}
    schema = create_model("EngineOptions", __config__=ConfigDict(extra="allow"), **fields)  # `of` refuses what is more
    try:
        return EngineConfig.of(str(model), read_options("engine", options, schema).model_dump(exclude_unset=True))
    except MisError as error:
        raise TargetUnavailable(error.message) from None


class EngineTarget(BlockingTarget):
    """An engine; closed with the target.

    Attributes:
        engine: Whom it asks.
        tasks: All of them.
        about: What it is; options are all of the engine's, with what it made of those left open.

    Raises:
        TargetUnavailable: the engine refuses the checkpoint, or an option does not fit it.
    """

    tasks = tuple(_TASKS)

    def __init__(self, config: EngineConfig) -> None:
        try:
            self.engine = engine = Engine(config)
        except MisError as error:
            raise TargetUnavailable(error.message) from None
        self._service = InlineService(engine.submit, engine.limits, lambda: engine.tokenizer, engine.calibrations)
        options = dataclasses.asdict(engine.config)
        self.about = About(
            name="engine",
            backend="mis-engine",
            model=options.pop("model"),
            model_sha256=checkpoint_sha256(engine.directory),
            dtype=engine.config.dtype,
            options=options | engine.summary,
            versions={
                each.__name__.replace("_", "-"): each.__version__ for each in (mis_core, mis_kernels, jax, jaxlib)
            },
        )

    def score(self, workload: Workload, layout: Layout = {}) -> Reply:  # noqa: B006 - nobody changes it
        """Do what a workload asks, as the engine's method of that task does; raises its errors, and JAX's."""
        fields: dict[str, Any] = workload.request | dict(layout)
        answered = run_blocking(self._service.answer(_TASKS[workload.task], fields))
        scores = _scores(answered.result, workload)
        cached = sum(output.cached_tokens for output in answered.outputs)
        return Reply(scores.astype(np.float64), dict(answered.timings_ms), cached)

    def forget(self) -> None:
        """Drop every cached query."""
        self.engine.flush_cache()

    def counts(self) -> dict[str, float]:
        """Return the engine's statistics and memory, `device_memory_bytes` where accelerators tell."""
        counts = self.engine.statistics() | super().counts()
        used = [stats["bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
        return counts | {"device_memory_bytes": float(sum(used))} if used else counts

    def product_rate(self) -> float | None:
        """Measure the products of the backend that computes this model, where that is a CPU."""
        config = self.engine.config
        if jax.default_backend() != "cpu" or config.quantization != "none":
            return None
        with_head = config.decision_prompt is None
        model = read_model_config(self.engine.directory, ignore_unknown=True, with_decision_head=with_head)
        dtype = jnp.dtype(config.dtype)
        backend = choose(model.attention, dtype.name)
        multiply = jax.jit(lambda rows, weight: weight_of(weight).at_layer(jnp.int32(0)).linear(rows))

        def make(depth: int, columns: int) -> Callable[[], jax.Array]:
            drawn = np.random.default_rng(0).standard_normal((1, depth, columns), np.float32).astype(dtype)
            is_packed = packs(model, 1, backend)
            weight = jax.device_put(backend.pack(drawn) if is_packed else drawn.view(backend.storage_dtype))
            rows = jnp.ones((ROWS, depth), dtype)
            return lambda: multiply(rows, weight).block_until_ready()

        return best_rate(make, model.embed, model.mlp)

    def close(self) -> None:
        """Free weights and cache."""
        self.engine.close()


def _scores(result: Any, workload: Workload) -> Scores:
    """Return the result of a task as a number for each item, or of scores for each label."""
    if workload.task == "score":
        return result.scores
    if workload.task == "loglikelihoods":
        lens = np.array([len(item) for item in workload.items])
        ends = np.cumsum(lens + len(workload.query))  # of the prompts, each the query and an item
        spans = zip(ends - lens, ends, strict=True)
        return np.array([[result.prompt.logprobs[begin:end].mean(dtype=np.float64)] for begin, end in spans])
    return _READS[workload.task]([dataclasses.asdict(result)], workload).scores
