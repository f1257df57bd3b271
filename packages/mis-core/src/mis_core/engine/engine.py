"""The engine: one model on this process's devices, asked in Python."""

import asyncio
import dataclasses
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp

from mis_core.checkpoints import open_checkpoint
from mis_core.config import EngineConfig
from mis_core.engine.compilations import Compilations, keep_compiled
from mis_core.engine.generation import GenerationService
from mis_core.engine.loop import EngineLoop, Listener
from mis_core.errors import ConfigError, ModelError, RequestError
from mis_core.hub import resolve
from mis_core.models.config import read_model_config
from mis_core.models.parallel import make_mesh, spread_heads
from mis_core.models.weights import load_decoder
from mis_core.requests import EngineOutput, GenerateRequest, Layout, ScoreRequest
from mis_core.runner.buckets import token_buckets
from mis_core.runner.dense import DenseMemory
from mis_core.runner.memory import Resident, cache_pages, token_budget
from mis_core.runner.runner import Runner
from mis_core.scheduler.plan import PAGE_SIZE, StepShape
from mis_core.scheduler.scheduler import Scheduler
from mis_core.tasks.classify import CLASSIFY, ClassifyResult
from mis_core.tasks.decide.answers import Decision
from mis_core.tasks.decide.task import DECIDE
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.service import InlineService, ThreadedService, run_blocking
from mis_core.tasks.recipes.recognition import describe_rerank
from mis_core.tasks.rerank.task import RERANK, Ranking
from mis_core.tasks.score.result import ScoreResult
from mis_core.tasks.score.task import SCORE
from mis_core.tasks.text.bodies import NEW_TOKENS
from mis_core.tasks.text.choices import GenerateChunk
from mis_core.tasks.text.generation import GenerateResult, finish_generation
from mis_core.tokenization import Tokenizer
from mis_kernels.backends import explain, fastest_dtype

logger = logging.getLogger(__name__)


class Engine:
    """Scores items behind a shared query.

    Any number of threads and coroutines may ask at once; their requests share the device's steps. Close
    it, or use it as a context manager. In its `config`, `dtype` is the type that it computes in, never `auto`; its
    `summary` is what was loaded, for people; `created` is when the checkpoint's settings were written, in seconds since
    1970.
    """

    def __init__(self, config: EngineConfig, *, progress: bool = True) -> None:
        """Load a model and compile its steps.

        Args:
            config: What to load and how.
            progress: Show progress bars on standard error.

        Raises:
            ModelError: the checkpoint cannot be served as it stands; one sentence says why.
            ConfigError: the options do not fit the model or this machine's devices.
        """
        keep_compiled(config.compilation_cache_dir)
        local = resolve(config)
        directory = Path(local.model)
        checkpoint = open_checkpoint(directory, config.max_checkpoint_file_bytes)
        model = read_model_config(checkpoint, ignore_unknown=config.ignore_unknown_settings)
        dtype, reason = fastest_dtype() if config.dtype == "auto" else (config.dtype, "as asked for")
        self.config = config = dataclasses.replace(config, dtype=dtype)
        self.directory: Path = directory
        self.created = int(checkpoint.settings_path.stat().st_mtime)
        self._local = local
        self.vocab_size = model.vocab_size
        if config.context_length is not None and config.context_length > model.longest:
            raise ModelError(f"context_length {config.context_length} exceeds the model's {model.longest} positions.")
        delimiter = config.multi_item_scoring_delimiter
        if delimiter is not None and delimiter >= model.vocab_size:
            raise ConfigError(
                f"multi_item_scoring_delimiter must be a token of the model, below {model.vocab_size}, "
                f"not {delimiter}.",
                "multi_item_scoring_delimiter",
            )
        mesh = make_mesh(config.dp_size, config.tp_size)
        spread = spread_heads(model, config.tp_size)
        logger.info("Loading %s as %s (%s), quantization %s.", directory.name, dtype, reason, config.quantization)
        decoder = load_decoder(checkpoint, model, jnp.dtype(dtype), mesh, progress, config.quantization)
        logger.info("Steps are computed by %s.", explain(decoder.backend.heads, dtype))
        budget = token_budget(config, spread, mesh)
        pages, self.context_length = cache_pages(config, spread, mesh, budget)
        shape = StepShape.of_budget(
            budget,
            pages_per_context=-(-self.context_length // PAGE_SIZE),
            alignment=decoder.backend.alignment,
            shards=config.dp_size,
        )
        self._dense_memory = DenseMemory(shape, decoder.backend)
        if config.mask_impl == "dense":
            self._dense_memory.check_longest()
        runner = Runner(decoder, mesh, shape, pages)
        layout = Layout(config.scoring_algorithm, config.mask_impl, config.multi_item_scoring_chunk_size)
        caches, most = not config.disable_radix_cache, config.max_running_requests
        scheduler = Scheduler(shape, pages, layout, max_running=most, prefix_cache=caches)
        self._tokenizer: Tokenizer | None = None
        self._reading_tokenizer = threading.Lock()  # threads that begin together would import transformers by halves
        # Who asks in Python may always choose the layout.
        self.limits = Limits(
            context_length=self.context_length,
            vocab_size=self.vocab_size,
            delimiter=delimiter,
            layouts=True,
            head_labels=model.head_labels,
            head_activation=model.head_activation,
            architecture=model.architecture,
            signs=checkpoint.signs(),
            rerank_recipe=config.rerank_recipe,
        )
        if not config.skip_warmup:
            logger.info("Compiling the steps of %d shapes.", len(token_buckets(budget)))
            seconds = runner.warm_up(dense_mask=config.mask_impl == "dense", progress=progress)
            logger.info("Compiled in %.1f s: %s", sum(seconds.values()), seconds)
        self.summary: dict[str, str | int | float] = {
            "dtype": dtype,
            "quantization": config.quantization,
            "devices": f"{config.tp_size * config.dp_size} x {jax.devices()[0].device_kind}",
            "tp_size": config.tp_size,
            "dp_size": config.dp_size,
            "context_length": self.context_length,
            "cache_tokens": pages * PAGE_SIZE * config.dp_size,
            "step_tokens": budget,
            "buckets": " ".join(map(str, token_buckets(budget))),
        }
        self._compilations = Compilations()
        self._loop = EngineLoop(runner, scheduler)
        self._inline, self._threaded = (
            service(self.submit, self.limits, lambda: self.tokenizer) for service in (InlineService, ThreadedService)
        )
        self._generations = GenerationService(self.submit_generation, self.limits, lambda: self.tokenizer)

    @classmethod
    def from_pretrained(cls, model: str | Path, *, progress: bool = True, **options: Any) -> Self:
        """Load a Hugging Face model directory or name, or a GGUF file.

        Args:
            model: The directory or file, or a name that the hub client resolves.
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
        with self._reading_tokenizer:
            if self._tokenizer is None:
                self._tokenizer = Tokenizer.of(self._local).compiled()
                logger.info("Rerank: %s", describe_rerank(self._tokenizer, self.limits))
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
            label_token_ids: Tokens whose probability after `query + item` is wanted, or one list per item. Of a model
                with a classification head: rows of the head, all of them if this is left out.
            options: The other fields of the HTTP body: `labels`, `apply_softmax`, `item_first`,
                `temperature`, `return_token_logprobs`, `cache_salt`, `add_special_tokens`, `on_error`; and, for this
                request only, `scoring_algorithm`, `mask_impl` and `multi_item_scoring_chunk_size`.

        Raises:
            RequestError: the request breaks the contract; nothing was computed.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        fields = _fields(query, items, label_token_ids, options)
        return run_blocking(self._inline.answer(SCORE, fields)).result

    async def score_async(self, query: Any, items: Any, label_token_ids: Any = None, **options: Any) -> ScoreResult:
        """`score` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        fields = _fields(query, items, label_token_ids, options)
        return (await self._threaded.answer(SCORE, fields)).result

    def classify(self, input: str | Sequence[Any], **options: Any) -> ClassifyResult:
        """Classify whole sequences by the model's classification head.

        Args:
            input: A text, texts, token ids of one sequence, or of several.
            options: The other fields of the HTTP body: `use_activation`, `add_special_tokens`, `cache_salt`.

        Raises:
            RequestError: the request breaks the contract, or the model has no such head; nothing was computed.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        return run_blocking(self._inline.answer(CLASSIFY, {"input": input, **options})).result

    async def classify_async(self, input: Any, **options: Any) -> ClassifyResult:
        """`classify` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        return (await self._threaded.answer(CLASSIFY, {"input": input, **options})).result

    def decide(self, input: str | Sequence[Any], questions: Sequence[Any], **options: Any) -> Decision:
        """Answer questions about an input: is it so, which is it, how much is it.

        Args:
            input: A text, or messages and tool records as dictionaries.
            questions: Dictionaries as in the HTTP body: predicates, choices and scores.
            options: The other fields of the HTTP body, such as `choice_order`, `on_error` and `cache_salt`.

        Raises:
            RequestError: the request breaks the contract; nothing was computed.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        fields = {"input": input, "questions": questions, **options}
        return run_blocking(self._inline.answer(DECIDE, fields)).result

    async def decide_async(self, input: Any, questions: Any, **options: Any) -> Decision:
        """`decide` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        fields = {"input": input, "questions": questions, **options}
        return (await self._threaded.answer(DECIDE, fields)).result

    def rerank(
        self, query: str, documents: Sequence[str | Mapping[str, str]], top_n: int | None = None, **options: Any
    ) -> Ranking:
        """Sort documents by how well each answers a query.

        Args:
            query: Text, not empty.
            documents: Texts, or dictionaries with `text`.
            top_n: How many of the best are returned; None for all.
            options: The other fields of the HTTP body, such as `instruction`, `return_documents`,
                `max_tokens_per_doc`, `on_error` and `cache_salt`.

        Raises:
            RequestError: the request breaks the contract; nothing was computed.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        fields = {"query": query, "documents": documents, "top_n": top_n, **options}
        return run_blocking(self._inline.answer(RERANK, fields)).result

    async def rerank_async(self, query: Any, documents: Any, top_n: int | None = None, **options: Any) -> Ranking:
        """`rerank` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        fields = {"query": query, "documents": documents, "top_n": top_n, **options}
        return (await self._threaded.answer(RERANK, fields)).result

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = NEW_TOKENS, **options: Any) -> GenerateResult:
        """Write what comes after a prompt.

        Args:
            prompt: A text, or token ids.
            max_new_tokens: Most tokens of an answer.
            options: `temperature` (default 1; 0: the most probable token), `top_p`, `top_k`, `min_p`, `seed`,
                `logit_bias`, `presence_penalty`, `frequency_penalty`; `n` answers; `stop` texts, which are not in the
                answer, `stop_token_ids`, `ignore_eos`; `logprobs`: how many of the most probable tokens are told;
                `cache_salt`, `add_special_tokens`. Names and ranges are those of OpenAI's completions.

        Raises:
            RequestError: the request breaks the contract; nothing was computed.
            ModelError: the checkpoint has no tokenizer, which says where answers end.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        parsed, choices = self._generations.parse({"prompt": prompt, "max_new_tokens": max_new_tokens, **options})
        for _ in self._generations.generate(parsed, choices):
            pass
        return finish_generation(parsed, choices)

    async def generate_async(self, prompt: Any, max_new_tokens: int = NEW_TOKENS, **options: Any) -> GenerateResult:
        """`generate` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        fields = {"prompt": prompt, "max_new_tokens": max_new_tokens, **options}
        parsed, choices = await asyncio.to_thread(self._generations.parse, fields)
        async with aclosing(self._generations.generate_async(parsed, choices)) as chunks:
            async for _ in chunks:
                pass
        return finish_generation(parsed, choices)

    def stream(
        self, prompt: str | Sequence[int], max_new_tokens: int = NEW_TOKENS, **options: Any
    ) -> Generator[GenerateChunk]:
        """`generate`, token by token; closing the iterator early frees what the answers hold.

        Nothing is written before the first is asked for. Then tokens are kept for who reads slowly, all of an answer if
        need be: nobody waits for a reader.
        """
        fields = {"prompt": prompt, "max_new_tokens": max_new_tokens, **options}
        return self._generations.generate(*self._generations.parse(fields))

    async def stream_async(
        self, prompt: Any, max_new_tokens: int = NEW_TOKENS, **options: Any
    ) -> AsyncGenerator[GenerateChunk]:
        """`stream` for asyncio."""
        fields = {"prompt": prompt, "max_new_tokens": max_new_tokens, **options}
        parsed, choices = await asyncio.to_thread(self._generations.parse, fields)
        async with aclosing(self._generations.generate_async(parsed, choices)) as chunks:
            async for chunk in chunks:
                yield chunk

    def submit(self, request: ScoreRequest) -> Future[EngineOutput]:
        """Queue a validated request; cancelling the future frees what it holds.

        Raises:
            RequestError: it asks for dense masks, which take more memory than they may.
            EngineUnavailable: the engine is closed.
        """
        self._dense_memory.check(request)
        return self._loop.submit(request)

    def submit_generation(self, request: GenerateRequest, listener: Listener, key: int) -> Callable[[], None]:
        """Queue a validated sequence; return what ends it early, which frees what it holds.

        Args:
            request: The prompt, and how it goes on.
            listener: Gets its tokens as they come, or why no more come; see `Listener`.
            key: Comes with each of them; the listener may listen to other sequences, too.

        Raises:
            EngineUnavailable: the engine is closed.
        """
        return self._loop.generate(request, listener, key)

    @property
    def progress(self) -> int:
        """A number that grows with every finished step."""
        return self._loop.progress

    def statistics(self) -> dict[str, float]:
        """Return counts of requests, steps, tokens and cache pages since the start.

        `compilations` are those of this process since the engine is ready; absent if JAX does not report them.
        """
        count = self._compilations.count
        return self._loop.statistics() | ({} if count is None else {"compilations": count})

    def flush_cache(self) -> int:
        """Forget every query that no request is using; return how many pages that freed."""
        return self._loop.flush()

    def start_profile(self, directory: str | Path) -> None:
        """Begin a JAX profile, readable by XProf and Perfetto.

        Args:
            directory: Folder for the trace.

        Raises:
            RequestError: `profile_under_way`.
        """
        try:
            jax.profiler.start_trace(str(directory))
        except RuntimeError:
            raise RequestError("profile_under_way", "A profile is under way; stop it first.") from None

    def stop_profile(self) -> None:
        """End the profile and write it.

        Raises:
            RequestError: `no_profile`.
        """
        try:
            jax.profiler.stop_trace()
        except RuntimeError:
            raise RequestError("no_profile", "No profile is under way; start one first.") from None

    def memory(self) -> dict[str, Resident]:
        """Return the arrays that stay on the devices, weights and KV cache, by name; empty when closed."""
        return self._loop.memory()

    def save_memory_profile(self, path: str | Path) -> None:
        """Write what lies in device memory, in pprof's format."""
        jax.profiler.save_device_memory_profile(str(path))

    def check(self) -> None:
        """Assert that every page of the KV cache is free, cached or held by a request; for tests and debugging.

        Raises:
            AssertionError: a page is lost or held twice.
        """
        self._loop.check()

    def close(self) -> None:
        """Free the weights and the cache; requests under way fail. Closing twice is fine."""
        self._loop.close()
        self._compilations.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _fields(query: Any, items: Any, label_token_ids: Any, options: dict[str, Any]) -> dict[str, Any]:
    fields = {"query": query, "items": items, **options}
    return fields if label_token_ids is None else fields | {"label_token_ids": label_token_ids}
