"""The engine: one model on this process's devices, asked in Python."""

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, overload

import jax

from mis_core.config import EngineConfig
from mis_core.engine.compilations import Compilations
from mis_core.engine.generation import GenerationService
from mis_core.engine.loading import load
from mis_core.engine.loop import EngineLoop, Listener
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, GenerateRequest, ScoreRequest
from mis_core.runner.memory import Resident
from mis_core.tasks.classify.task import CLASSIFY, ClassifyResult
from mis_core.tasks.classify.token_task import TOKEN_CLASSIFY, TokenClassifyResult
from mis_core.tasks.decide.answers import Decision
from mis_core.tasks.decide.system_one.answers import SystemOneResult
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_core.tasks.decide.task import DECIDE
from mis_core.tasks.path.service import InlineService, ThreadedService, run_blocking
from mis_core.tasks.path.task import Result, Task
from mis_core.tasks.rerank.task import RERANK, Ranking
from mis_core.tasks.score.result import ScoreResult
from mis_core.tasks.score.task import SCORE
from mis_core.tasks.text.bodies import NEW_TOKENS
from mis_core.tasks.text.choices import GenerateChunk
from mis_core.tasks.text.generation import GenerateResult
from mis_core.tokenization import Tokenizer


class Engine:
    """Scores items after a shared query.

    Any number of threads and coroutines may ask at once; their requests share the device's steps. Close
    it, or use it as a context manager. Of its attributes, `config.dtype` is the type that it computes in, never `auto`;
    `summary` describes what was loaded; `created` is when the checkpoint's settings were written, in seconds since
    1970; `parts` lists what the model is made of; `calibrations` are those applied to results, or None.
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
        model = load(config, progress)
        self.config, self.directory, self.created, self.parts = (
            model.config, model.directory, model.created, model.parts,
        )  # fmt: skip
        self.limits, self.summary = model.limits, model.summary
        self.vocab_size, self.context_length = model.limits.vocab_size, model.limits.context_length
        self._dense_memory, self._read_tokenizer = model.dense_memory, model.read_tokenizer
        self._compilations = Compilations()
        self._loop = EngineLoop(model.runner, model.scheduler)
        reading = model.limits, model.read_tokenizer
        self.calibrations = model.calibrations
        given = self.submit, *reading, model.calibrations
        self._inline, self._threaded = InlineService(*given), ThreadedService(*given)
        self._generations = GenerationService(self.submit_generation, *reading)

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
        return self._read_tokenizer()

    def score(
        self,
        query: str | Sequence[int],
        items: str | Sequence[str] | Sequence[Sequence[int]],
        label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **options: Any,
    ) -> ScoreResult:
        """Score every item after the query.

        Args:
            query: Shared text or token ids, not empty.
            items: Texts or lists of token ids, of the query's kind; one may be empty.
            label_token_ids: Tokens whose probability after `query + item` is wanted, or one list per item. For a model
                with a classification head: rows of the head, all of them if this is left out.
            options: The other fields of the HTTP body: `labels`, `apply_softmax`, `item_first`,
                `temperature`, `return_token_logprobs`, `cache_salt`, `add_special_tokens`, `on_error`; and, for this
                request only, `scoring_algorithm`, `mask_impl` and `multi_item_scoring_chunk_size`.

        Raises:
            RequestError: the request breaks the contract; nothing was computed.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        return self._ask(SCORE, query=query, items=items, label_token_ids=label_token_ids, **options)

    async def score_async(self, query: Any, items: Any, label_token_ids: Any = None, **options: Any) -> ScoreResult:
        """`score` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        return await self._ask_async(SCORE, query=query, items=items, label_token_ids=label_token_ids, **options)

    def classify(self, input: str | Sequence[Any], **options: Any) -> ClassifyResult:
        """Classify whole sequences by the model's classification head.

        Args:
            input: A text, texts, token ids of one sequence, or of several.
            options: The other fields of the HTTP body: `use_activation`, `add_special_tokens`, `cache_salt`.

        Raises:
            RequestError: the request breaks the contract, or the model has no such head; nothing was computed.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        return self._ask(CLASSIFY, input=input, **options)

    async def classify_async(self, input: Any, **options: Any) -> ClassifyResult:
        """`classify` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        return await self._ask_async(CLASSIFY, input=input, **options)

    def token_classify(self, input: str | Sequence[Any], **options: Any) -> TokenClassifyResult:
        """Label every token of whole sequences by the model's head.

        Args:
            input: A text, texts, token ids of one sequence, or of several.
            options: The other fields of the HTTP body, as of `classify`.

        Raises:
            RequestError: the request breaks the contract, or the model has no such head; nothing was computed.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        return self._ask(TOKEN_CLASSIFY, input=input, **options)

    async def token_classify_async(self, input: Any, **options: Any) -> TokenClassifyResult:
        """`token_classify` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        return await self._ask_async(TOKEN_CLASSIFY, input=input, **options)

    @overload
    def decide(self, input: str | Sequence[Any], questions: Sequence[Any], **options: Any) -> Decision: ...

    @overload
    def decide(self, input: Any, questions: Mapping[str, Any], **options: Any) -> SystemOneResult: ...

    def decide(self, input: Any, questions: Any, **options: Any) -> Decision | SystemOneResult:
        """Answer questions about an input: is it so, which is it, how much is it.

        Args:
            input: A text, or messages and tool records as dictionaries; with questions of System One its `state`, a
                text, a dictionary or a list.
            questions: Dictionaries as in the body of `/v1/decisions`: predicates, choices and scores. Or a dictionary
                of them by their ids, as in the body of `/v1/systemone`.
            options: The other fields of that body, such as `choice_order` or `x_choice_order`.

        Raises:
            RequestError: the request breaks the contract; nothing was computed.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        if isinstance(questions, Mapping):
            return self._ask(SYSTEM_ONE, state=input, questions=questions, **options)
        return self._ask(DECIDE, input=input, questions=questions, **options)

    async def decide_async(self, input: Any, questions: Any, **options: Any) -> Decision | SystemOneResult:
        """`decide` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        if isinstance(questions, Mapping):
            return await self._ask_async(SYSTEM_ONE, state=input, questions=questions, **options)
        return await self._ask_async(DECIDE, input=input, questions=questions, **options)

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
        return self._ask(RERANK, query=query, documents=documents, top_n=top_n, **options)

    async def rerank_async(self, query: Any, documents: Any, top_n: int | None = None, **options: Any) -> Ranking:
        """`rerank` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        return await self._ask_async(RERANK, query=query, documents=documents, top_n=top_n, **options)

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = NEW_TOKENS, **options: Any) -> GenerateResult:
        """Generate the continuation of a prompt.

        Args:
            prompt: A text, or token ids.
            max_new_tokens: Most tokens of an answer.
            options: `temperature` (default 1; 0: the most probable token), `top_p`, `top_k`, `min_p`, `seed`,
                `logit_bias`, `presence_penalty`, `frequency_penalty`; `n` answers; `stop` texts, which are not in the
                answer, `stop_token_ids`, `ignore_eos`; `logprobs`: how many of the most probable tokens are returned;
                `cache_salt`, `add_special_tokens`. Names and ranges are those of OpenAI's completions.

        Raises:
            RequestError: the request breaks the contract; nothing was computed.
            ModelError: the checkpoint has no tokenizer, which says where answers end.
            EngineUnavailable: the engine is closed, or lost this request to a fault of the device.
        """
        return self._generations.generate(prompt=prompt, max_new_tokens=max_new_tokens, **options)

    async def generate_async(self, prompt: Any, max_new_tokens: int = NEW_TOKENS, **options: Any) -> GenerateResult:
        """`generate` for asyncio: the event loop stays free, and cancelling the task frees the device."""
        return await self._generations.generate_async(prompt=prompt, max_new_tokens=max_new_tokens, **options)

    def stream(
        self, prompt: str | Sequence[int], max_new_tokens: int = NEW_TOKENS, **options: Any
    ) -> Generator[GenerateChunk]:
        """`generate`, token by token; closing the iterator early frees what the answers hold.

        Nothing is generated before the first token is asked for. Unread tokens are buffered, a whole answer if need be,
        so a slow reader never blocks the engine.
        """
        return self._generations.stream(prompt=prompt, max_new_tokens=max_new_tokens, **options)

    def stream_async(
        self, prompt: Any, max_new_tokens: int = NEW_TOKENS, **options: Any
    ) -> AsyncGenerator[GenerateChunk]:
        """`stream` for asyncio."""
        return self._generations.stream_async(prompt=prompt, max_new_tokens=max_new_tokens, **options)

    def submit(self, request: ScoreRequest) -> Future[EngineOutput]:
        """Queue a validated request; cancelling the future frees what it holds.

        Raises:
            RequestError: it asks for dense masks that take more memory than allowed.
            EngineUnavailable: the engine is closed.
        """
        if request.layout.mask == "dense":
            self._dense_memory.check(request)
        return self._loop.submit(request)

    def submit_generation(self, request: GenerateRequest, listener: Listener, key: int) -> Callable[[], None]:
        """Queue a validated sequence; return what ends it early, which frees what it holds.

        Args:
            request: The prompt, and how it is continued.
            listener: Gets its tokens as they come, or why no more come; see `Listener`.
            key: Passed with each of them, since a listener may listen to several sequences.

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

    def _ask(self, task: Task[Any, Result], /, **fields: Any) -> Result:
        return run_blocking(self._inline.answer(task, fields)).result

    async def _ask_async(self, task: Task[Any, Result], /, **fields: Any) -> Result:
        return (await self._threaded.answer(task, fields)).result
