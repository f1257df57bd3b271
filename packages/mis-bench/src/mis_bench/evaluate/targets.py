"""From the name of a target on the command line to whom rows are asked of."""

import asyncio
import dataclasses
import difflib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import PositiveInt

from mis_bench.checkpoints import CheckpointError, resolve_checkpoint
from mis_bench.evaluate.client import Client, CohereClient, SystemOneClient
from mis_bench.evaluate.dialects import (
    COHERE,
    OURS,
    SYSTEM_ONE,
    VLLM,
    Dialect,
    Send,
    decide_by_openai,
    score_by_completions,
)
from mis_bench.targets.asking import Json
from mis_bench.targets.spec import Options, TargetSpec, is_secret, read_options, without_secrets
from mis_bench.targets.target import CallFailed, TargetUnavailable
from mis_core.labelled import Kind

KEYS = {
    "mis": "MIS_API_KEY", "vllm": "VLLM_API_KEY", "openai": "OPENAI_API_KEY", "systemone": "TYPESAFE_API_KEY",
    "cohere": "CO_API_KEY",
}  # fmt: skip
"""The environment variables of keys, by kind of server."""

SPECS = ("engine", *(f"{kind}=http://HOST:PORT" for kind in KEYS))
"""How targets are spelled."""

_CLIENTS: Mapping[str, type[Client]] = {"systemone": SystemOneClient, "cohere": CohereClient}
_DIALECTS = {"engine": OURS, "mis": OURS, "vllm": VLLM, "systemone": SYSTEM_ONE, "cohere": COHERE}


class AskedServerOptions(Options):
    """What a server takes: the name of the model, by default the first that it lists."""

    model: str | None = None


class OurServerOptions(AskedServerOptions):
    """What `mis` takes, too: `calibration=none` asks for probabilities as the model has them."""

    calibration: Literal["none"] | None = None


class CompletionsOptions(AskedServerOptions):
    """What `openai` takes, too: how many of the most probable tokens are asked for. OpenAI allows 5."""

    logprobs: PositiveInt = 5


class OpenTarget(NamedTuple):
    """A target that can be asked.

    Attributes:
        send: How.
        close: Frees what it holds.
        head_labels: Names of the rows of its classification head, as far as they are known.
    """

    send: Send
    close: Callable[[], Awaitable[None]]
    head_labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluatedTarget:
    """A target that was asked for.

    Attributes:
        name: In tables, the report and JSON.
        kind: `engine`, `mis` and so on.
        url: Of a server.
        options: Its own.
        dialect: How it is asked.
        model: The checkpoint, of `engine`; of a server's, if it can be read here.
    """

    name: str
    kind: str
    url: str
    options: Mapping[str, str]
    dialect: Dialect
    model: Path | None

    @classmethod
    def of(cls, text: str, model: str | None, kind_of_data: Kind) -> "EvaluatedTarget":
        """Read `[ALIAS=]TARGET[,OPTION=VALUE]...`; loads nothing.

        Raises:
            TargetUnavailable: there is none of that name, it has no such option, or it cannot be asked that.
        """
        spec = TargetSpec.parse(text)
        kind, equals, url = spec.spec.partition("=")
        if spec.spec not in SPECS[:1] and not (equals and kind in KEYS):
            near = difflib.get_close_matches(spec.spec, SPECS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(SPECS)}."
            raise TargetUnavailable(f"There is no target {without_secrets(spec.spec)[:80]!r} to evaluate; {hint}")
        if any(is_secret(name) for name in spec.options):
            where = KEYS.get(kind)
            hint = f"Set {where} instead." if where else "The engine takes none."
            raise TargetUnavailable(f"A key on the command line can be seen by everybody. {hint}")
        options = dict(spec.options)
        dialect = _DIALECTS.get(kind)
        if kind == "engine":
            model = options.pop("model", model)
            if model is None:
                raise TargetUnavailable("The target engine loads a checkpoint: name one with --model, or model=NAME.")
        elif kind == "openai":
            logprobs = read_options(kind, options, CompletionsOptions).logprobs
            dialect = Dialect(score_by_completions(logprobs), decide=decide_by_openai)
        else:
            read_options(kind, options, OurServerOptions if kind == "mis" else AskedServerOptions)
        assert dialect is not None, "every kind has one"
        if getattr(dialect, kind_of_data) is None:
            raise TargetUnavailable(f"{kind_of_data} data is not supported by {kind}.")
        try:
            directory = None if model is None else resolve_checkpoint(model)
        except CheckpointError as error:
            raise TargetUnavailable(str(error)) from None
        return cls(spec.alias, kind, url, options, dialect, directory)

    async def open(self, timeout_s: float, callers: int) -> OpenTarget:
        """Load the model, or look for the server; raises `TargetUnavailable`."""
        if self.kind == "engine":
            assert self.model is not None, "as checked"
            return await _engine(self.model, self.options)
        make = _CLIENTS.get(self.kind, Client)
        key = os.environ.get(KEYS[self.kind]) or None
        named = self.options.get("model"), callers, self.options.get("calibration")
        client = make(self.url, key, timeout_s, *named)
        try:
            await client.look_for_model()
        except TargetUnavailable:
            await client.close()
            raise
        return OpenTarget(client.send, client.close, _head_labels(self.model))


async def _engine(model: Path, options: Mapping[str, str]) -> OpenTarget:
    """Load our engine, and return how it is asked in the words of our routes."""
    from mis_bench.targets.engine import EngineTarget, engine_config
    from mis_core.errors import MisError
    from mis_core.tasks.classify.task import CLASSIFY
    from mis_core.tasks.decide.system_one.task import SYSTEM_ONE as DECIDE
    from mis_core.tasks.path.service import ThreadedService
    from mis_core.tasks.rerank.task import RERANK
    from mis_core.tasks.score.task import SCORE

    config = engine_config(model, options)
    target = await asyncio.to_thread(EngineTarget, config)
    engine = target.engine
    service = ThreadedService(engine.submit, engine.limits, lambda: engine.tokenizer, engine.calibrations)
    tasks: Mapping[str, Any] = {
        "/v1/score": SCORE, "/v1/rerank": RERANK, "/v1/systemone": DECIDE, "/v1/classify": CLASSIFY,
    }  # fmt: skip

    async def send(path: str, body: Json) -> Json:
        try:
            result = (await service.answer(tasks[path], body)).result
        except (MisError, RuntimeError) as error:  # JAX's own are RuntimeErrors
            raise CallFailed("rejected", (str(error).splitlines() or [type(error).__name__])[0][:300]) from error
        if path == "/v1/classify":
            rows = zip(result.labels, result.probabilities, strict=True)
            return {
                "data": [{"index": index, "label": label, "probs": probs} for index, (label, probs) in enumerate(rows)]
            }
        return {name: value for name, value in dataclasses.asdict(result).items() if value is not msgspec.UNSET}

    async def close() -> None:
        await asyncio.to_thread(target.close)

    return OpenTarget(send, close, tuple(engine.limits.head_labels))


def _head_labels(directory: Path | None) -> tuple[str, ...]:
    """Return the names of a head's rows, where the checkpoint is here and says them."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8")) if directory else {}
        names = config.get("id2label") or {}
        return tuple(str(names[str(index)]) for index in range(len(names)))
    except (OSError, ValueError, KeyError, AttributeError):
        return ()
