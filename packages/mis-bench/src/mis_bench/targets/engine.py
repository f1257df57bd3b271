"""Our engine in this process."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from pydantic import ConfigDict, create_model

import mis_core
import mis_kernels
from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, Layout, Reply, TargetUnavailable
from mis_bench.targets.blocking import BlockingTarget
from mis_bench.targets.spec import read_options
from mis_bench.workload import Workload
from mis_core import Engine
from mis_core.config import EngineConfig
from mis_core.errors import MisError


def engine_config(model: Path, options: Mapping[str, str]) -> EngineConfig:
    """Read fields of `EngineConfig` from text, without loading anything; raises `TargetUnavailable`."""
    fields: Any = {field.name: (field.type, None) for field in dataclasses.fields(EngineConfig)}
    schema = create_model("EngineOptions", __config__=ConfigDict(extra="allow"), **fields)  # `of` refuses what is more
    try:
        return EngineConfig.of(str(model), read_options("engine", options, schema).model_dump(exclude_unset=True))
    except MisError as error:
        raise TargetUnavailable(error.message) from None


class EngineTarget(BlockingTarget):
    """An engine, asked through `Engine.score`; closed with the target.

    Attributes:
        engine: Whom it asks.
        about: What it is; options are all of the engine's, with what it made of those left open.

    Raises:
        TargetUnavailable: the engine refuses the checkpoint, or an option does not fit it.
    """

    def __init__(self, config: EngineConfig) -> None:
        try:
            self.engine = engine = Engine(config)
        except MisError as error:
            raise TargetUnavailable(error.message) from None
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
        """Score a workload; raises the engine's errors, and JAX's."""
        fields: dict[str, Any] = workload.request | dict(layout)
        result = self.engine.score(**fields)
        return Reply(result.scores.astype(np.float64), dict(result.timings_ms), result.usage.cached_tokens)

    def forget(self) -> None:
        """Drop every cached query."""
        self.engine.flush_cache()

    def counts(self) -> dict[str, float]:
        """Return the engine's statistics and memory, `device_memory_bytes` where accelerators tell."""
        counts = self.engine.statistics() | super().counts()
        used = [stats["bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
        return counts | {"device_memory_bytes": float(sum(used))} if used else counts

    def close(self) -> None:
        """Free weights and cache."""
        self.engine.close()
