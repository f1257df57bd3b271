"""Our engine in this process."""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import jax
import jaxlib
import numpy as np

import mis_core
import mis_kernels
from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, CallFailed, Reply, TargetUnavailable
from mis_bench.targets.local import failure, resident_bytes
from mis_bench.workload import Workload
from mis_core import Engine
from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, MisError, RequestError


def engine_config(model: Path, options: Mapping[str, str]) -> EngineConfig:
    """Read options, without loading anything.

    Args:
        model: Directory of the checkpoint.
        options: Fields of `EngineConfig` as text, such as `{"scoring_algorithm": "packed"}`.

    Raises:
        TargetUnavailable: an option is wrong.
    """
    try:
        return EngineConfig.of(str(model), _typed(options))
    except MisError as error:
        raise TargetUnavailable(error.message) from None


def open_engine(config: EngineConfig) -> "EngineTarget":
    """Load a checkpoint.

    Raises:
        TargetUnavailable: the engine refuses the checkpoint, or an option does not fit it.
    """
    try:
        return EngineTarget(Engine(config))
    except MisError as error:
        raise TargetUnavailable(error.message) from None


class EngineTarget:
    """An engine, asked through `Engine.score`; closed with the target.

    Args:
        engine: Whom to ask.
        fields: Of every request, `scoring_algorithm="packed"` for instance.
    """

    def __init__(self, engine: Engine, **fields: Any) -> None:
        self._engine, self._fields = engine, fields
        options = dataclasses.asdict(engine.config)
        self._about = About(
            name="engine",
            backend="mis-engine",
            model=options.pop("model"),
            model_sha256=checkpoint_sha256(engine.directory),
            dtype=engine.config.dtype,
            options=options | engine.summary | fields,
            versions={
                "mis-core": mis_core.__version__,
                "mis-kernels": mis_kernels.__version__,
                "jax": jax.__version__,
                "jaxlib": jaxlib.__version__,
            },
        )

    @property
    def engine(self) -> Engine:
        """Whom it asks."""
        return self._engine

    @property
    def about(self) -> About:
        """What it is; options are all of the engine's, with what it made of those left open."""
        return self._about

    def asking(self, **fields: Any) -> "EngineTarget":
        """Return the same engine with other fields in every request, `scoring_algorithm="serial"` for instance."""
        return EngineTarget(self._engine, **(self._fields | fields))

    def score(self, workload: Workload) -> Reply:
        """Score a workload.

        Raises:
            CallFailed: `rejected` (the request breaks a limit), `out_of_memory`, or `error`.
        """
        try:
            result = self._engine.score(**workload.request, **self._fields)
        except RequestError as error:
            raise CallFailed("rejected", error.message) from None
        except (EngineUnavailable, RuntimeError) as error:  # JAX's own are RuntimeErrors
            raise failure(error) from error
        return Reply(result.scores.astype(np.float64), dict(result.timings_ms), result.usage.cached_tokens)

    def forget(self) -> None:
        """Drop every cached query."""
        self._engine.flush_cache()

    def counts(self) -> dict[str, float]:
        """Return the engine's statistics, and `memory_bytes`, the resident memory of this process.

        `device_memory_bytes` is what lies on accelerators, where they tell.
        """
        counts = self._engine.statistics() | {"memory_bytes": float(resident_bytes())}
        used = [stats["bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
        return counts | {"device_memory_bytes": float(sum(used))} if used else counts

    def close(self) -> None:
        """Free weights and cache."""
        self._engine.close()


def _typed(options: Mapping[str, str]) -> dict[str, Any]:
    """Turn text into what `EngineConfig` declares; unknown names stay, for it to refuse."""
    types_of = {field.name: field.type for field in dataclasses.fields(EngineConfig)}
    return {name: _parse(name, text, types_of.get(name, str)) for name, text in options.items()}


def _parse(name: str, text: str, kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        if text.lower() == "none":
            return None
        kind = next(each for each in get_args(kind) if each is not types.NoneType)
    try:
        return _BOOLS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "an integer", float: "a number"}[kind]
        raise TargetUnavailable(f"The engine option {name} must be {wanted}, not {text[:80]!r}.") from None


_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
