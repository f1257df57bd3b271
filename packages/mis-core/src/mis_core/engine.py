"""The engine: one model on this process's devices, asked in Python."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, ModelError
from mis_core.hub import resolve_model
from mis_core.models.config import read_model_config
from mis_core.models.weights import load_decoder
from mis_core.request import LabelLogits, ScoreRequest, ScoreResult
from mis_core.runner.runner import Runner
from mis_core.scheduler.plan import plan_request
from mis_core.scoring import finish
from mis_core.tokenization import Tokenizer
from mis_core.validation import Limits, parse_score_request


class Engine:
    """Scores items behind a shared query. Thread-safe; close it, or use it as a context manager."""

    def __init__(self, config: EngineConfig, *, progress: bool = True) -> None:
        """Load a model and compile its steps.

        Args:
            config: What to load and how.
            progress: Show progress bars on standard error.

        Raises:
            ModelError: the checkpoint cannot be served as it stands; one sentence says why.
        """
        directory = resolve_model(config.model)
        model = read_model_config(directory)
        self.config = config
        self.directory: Path = directory
        self.vocab_size = model.vocab_size
        self.context_length = _context_length(config, model.max_positions)
        decoder = load_decoder(directory, model, jnp.dtype(config.dtype), progress)
        self._runner: Runner | None = Runner(decoder, config.chunked_prefill_size, self.context_length)
        self._lock = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self._limits = Limits(context_length=self.context_length, vocab_size=self.vocab_size)
        if not config.skip_warmup:
            self._runner.warm_up(progress)

    @classmethod
    def from_pretrained(cls, model: str | Path, *, progress: bool = True, **options: Any) -> Self:
        """Load a Hugging Face model directory or name.

        Args:
            model: The directory, or a name that the hub client resolves.
            progress: Show progress bars on standard error.
            options: Fields of `EngineConfig`, which are the command line's flags in snake_case.

        Raises:
            ConfigError: an option is unknown or out of range.
            ModelError: the checkpoint cannot be served as it stands.
        """
        return cls(EngineConfig.of(str(model), options), progress=progress)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, read at first use; requests of token ids never need it."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_pretrained(self.directory)
        return self._tokenizer

    def score(
        self,
        query: str | Sequence[int],
        items: str | Sequence[str] | Sequence[Sequence[int]],
        label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **options: Any,
    ) -> ScoreResult:
        """Score every item behind the query.

        Args:
            query: Shared text or token ids, not empty.
            items: Texts or lists of token ids, of the query's kind; one may be empty.
            label_token_ids: Tokens whose probability after `query + item` is wanted, or one list per item.
            options: The other fields of the HTTP body: `labels`, `apply_softmax`, `item_first`,
                `temperature`, `return_token_logprobs`, `cache_salt`.

        Raises:
            RequestError: the request breaks the contract; nothing was computed.
            EngineUnavailable: the engine is closed.
        """
        body = {"query": query, "items": items, **options}
        if label_token_ids is not None:
            body["label_token_ids"] = label_token_ids
        uses_text = isinstance(query, str) or body.get("labels") is not None
        request = parse_score_request(body, self.tokenizer if uses_text else None, self._limits)
        return finish(request, self.compute(request))

    async def score_async(self, query: Any, items: Any, label_token_ids: Any = None, **options: Any) -> ScoreResult:
        """`score` for asyncio: the event loop stays free while the device works."""
        return await asyncio.to_thread(self.score, query, items, label_token_ids, **options)

    def compute(self, request: ScoreRequest) -> LabelLogits:
        """Run a validated request on the device.

        Raises:
            EngineUnavailable: the engine is closed.
        """
        with self._lock:
            if self._runner is None:
                raise EngineUnavailable("The engine is closed.")
            return _compute(self._runner, request)

    def close(self) -> None:
        """Free the weights and the cache. Closing twice is fine."""
        with self._lock:
            self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _context_length(config: EngineConfig, max_positions: int) -> int:
    if config.context_length is not None and config.context_length > max_positions:
        raise ModelError(f"context_length {config.context_length} exceeds the model's {max_positions} positions.")
    return config.context_length or max_positions


def _compute(runner: Runner, request: ScoreRequest) -> LabelLogits:
    began = time.perf_counter()
    labels = np.broadcast_to(request.label_ids, (request.num_items, request.label_ids.shape[1]))
    logits = np.empty(labels.shape, np.float32)
    normalisers = np.empty(request.num_items, np.float32) if request.needs_log_sum_exp else None
    for plan in plan_request(request, runner.token_budget, runner.pages_per_context):
        hidden = runner.run(plan)
        if len(plan.scored_items) == 0:
            continue
        found, normaliser = runner.read_head(
            hidden, plan.scored_rows, labels[plan.scored_items], normalise=normalisers is not None
        )
        logits[plan.scored_items] = found
        if normalisers is not None:
            normalisers[plan.scored_items] = normaliser
    return LabelLogits(logits, normalisers, timings_ms={"device": (time.perf_counter() - began) * 1e3})
