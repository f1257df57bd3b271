"""Scoring a file without HTTP: `mis-server score`. Files may have any length, and runs may be interrupted.

Line `n` of the output belongs to line `n` of the input, and lines are written in order: the complete lines
of the output are done, however the last run ended. A note beside the output says what it was made with, so
that no run resumes it with another query, other labels or another model.
"""

import asyncio
import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from tqdm import tqdm

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, EngineUnavailable, RequestError
from mis_core.hub import resolve
from mis_core.process.client import EngineClient, EngineFault
from mis_core.process.quarantine import RequestRefused
from mis_core.scoring.request import ScoreResult
from mis_core.scoring.service import SCORE
from mis_core.tokenization import Tokenizer
from mis_server.service import ModelService
from mis_server.settings import ServerConfig
from mis_server.tokenizers.pool import TokenizerPool

_ATTEMPTS = 3  # at a batch whose engine process ended
_RESTART_S = 900.0
_IN_FLIGHT = 3  # batches: one computed, one waiting, one read or written


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to score.

    Attributes:
        items: JSON lines. A line is a text, a list of token ids, or an object with `item` and, optionally, `query` and
            `id`, which is copied to the output.
        output: JSON lines, `{"scores": [...]}` or `{"error": {"code", "message"}}` for each line of `items`.
        query: Text for lines without their own query.
        labels: Texts of one token each; empty if there are `label_token_ids`.
        label_token_ids: Token ids; empty if there are `labels`.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
        item_first: Score `item + query` instead.
        temperature: Divides label log-probabilities; other values than 1 need `apply_softmax`.
        batch_size: Maximum number of items per request to the engine.
    """

    items: Path
    output: Path
    query: str | None = None
    labels: tuple[str, ...] = ()
    label_token_ids: tuple[int, ...] = ()
    apply_softmax: bool = False
    item_first: bool = False
    temperature: float = 1.0
    batch_size: int = 512


@dataclass(slots=True)
class _Line:
    query: str | list[int] | None
    item: Any
    id: Any = None
    error: dict[str, str] | None = None


async def score_file(job: Job, config: EngineConfig, *, overwrite: bool = False, progress: bool = True) -> int:
    """Score the lines that are not in the output yet, and append them.

    Args:
        job: What to score.
        config: The engine's options.
        overwrite: Start over, whatever the output has.
        progress: Show a progress bar on standard error.

    Returns:
        How many lines have an error.

    Raises:
        ConfigError: a file cannot be read, or the output was made with other arguments.
        ModelError: the model cannot be served as it stands.
        EngineUnavailable: the engine ended again and again.
    """
    total = _count_lines(job.items)
    output = _Output(job, config)
    done, errors = output.resume(overwrite=overwrite)
    output.check_type(config.dtype)
    if done == total:
        return errors
    local = await asyncio.to_thread(resolve, config)
    tokenizer = await asyncio.to_thread(Tokenizer.from_pretrained, local.tokenizer)
    async with EngineClient(local) as client:
        info = await client.wait_ready()
        dtype = str(info.summary["dtype"])
        output.check_type(dtype)
        async with TokenizerPool(tokenizer) as tokenizers:
            scorer = _Scorer(job, ModelService(client, ServerConfig(engine=config), tokenizers))
            await scorer.check()
            with (
                output.open(dtype) as file,
                tqdm(total=total, initial=done, unit="item", disable=not progress, smoothing=0.1) as bar,
            ):
                return errors + await _append(job, scorer, done, file, bar)


async def _append(job: Job, scorer: "_Scorer", done: int, file: BinaryIO, bar: tqdm) -> int:
    """Write the lines that are not done; return how many have an error."""
    errors = 0
    waiting: deque[tuple[list[_Line], asyncio.Task[list[bytes]]]] = deque()

    async def write_first() -> int:
        batch, task = waiting.popleft()
        rows = await task
        file.write(b"".join(rows))
        file.flush()
        bar.update(len(batch))
        return sum(row.startswith(_ERROR) for row in rows)

    try:
        for batch in _batches(job, skip=done):
            waiting.append((batch, asyncio.create_task(scorer.rows(batch))))
            if len(waiting) == _IN_FLIGHT:
                errors += await write_first()
        while waiting:
            errors += await write_first()
    finally:
        for _, task in waiting:
            task.cancel()
    return errors


_ERROR = b'{"error":'


class _Scorer:
    """Scores lines as the server would, without HTTP."""

    def __init__(self, job: Job, service: ModelService) -> None:
        self._job = job
        self._service = service

    async def check(self) -> None:
        """Refuse options that would be wrong with every line.

        Raises:
            ConfigError: names the option.
        """
        try:
            await self._service.parse(SCORE, self._body("a", ["a"]))
        except RequestError as error:
            raise ConfigError(error.message, error.param or "labels") from None

    async def rows(self, lines: list[_Line]) -> list[bytes]:
        """Return the output's lines for a batch of lines that share a query."""
        good = [line for line in lines if line.error is None]
        scores: Iterator[list[float]] = iter(())
        if good:
            try:
                scores = iter((await self._score(good)).scores.tolist())
            except (RequestError, RequestRefused, EngineFault) as error:
                if len(good) > 1:  # one line is at fault: ask line by line, so that the others are scored
                    return [row for line in lines for row in await self.rows([line])]
                code = error.code if isinstance(error, RequestError) else "internal_error"
                good[0].error = {"code": code, "message": str(error.args[0])}
        return [self._row(line, None if line.error is not None else next(scores)) for line in lines]

    def _body(self, query: Any, items: list[Any]) -> bytes:
        job = self._job
        body: dict[str, Any] = {
            "query": query,
            "items": items,
            "apply_softmax": job.apply_softmax,
            "item_first": job.item_first,
            "temperature": job.temperature,
        }
        if job.labels:
            body["labels"] = list(job.labels)
        if job.label_token_ids:
            body["label_token_ids"] = list(job.label_token_ids)
        return msgspec.json.encode(body)

    async def _score(self, lines: list[_Line]) -> ScoreResult:
        body = self._body(lines[0].query, [line.item for line in lines])
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(EngineUnavailable):
                return (await self._service.answer(SCORE, body)).result
            async with asyncio.timeout(_RESTART_S):
                while not self._service.client.ready:
                    await asyncio.sleep(0.1)
        return (await self._service.answer(SCORE, body)).result

    def _row(self, line: _Line, scores: list[float] | None) -> bytes:
        row: dict[str, Any] = {"error": line.error} if line.error is not None else {"scores": scores}
        if line.id is not None:
            row["id"] = line.id
        return msgspec.json.encode(row) + b"\n"


def _batches(job: Job, skip: int) -> Iterator[list[_Line]]:
    """Yield runs of lines with one query, at most `batch_size` long."""
    batch: list[_Line] = []
    with job.items.open("rb") as file:
        for text in islice(file, skip, None):
            line = _read(text, job.query)
            if batch and (len(batch) == job.batch_size or line.query != batch[0].query):
                yield batch
                batch = []
            batch.append(line)
    if batch:
        yield batch


def _read(text: bytes, query: str | None) -> _Line:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Line(query, None, error={"code": "invalid_json", "message": "The line is not JSON."})
    line = _Line(query, value)
    if isinstance(value, dict):
        line = _Line(value.get("query", query), value.get("item"), value.get("id"))
    if line.item is None:
        line.error = {"code": "missing_items", "message": "The line has no item."}
    elif line.query is None:
        line.error = {"code": "missing_query", "message": "The line has no query, and there is no --query."}
    return line


def _count_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", "items") from None


class _Output:
    """The output file, and the note of what it was made with."""

    def __init__(self, job: Job, config: EngineConfig) -> None:
        self._path = job.output
        self._note = job.output.with_name(job.output.name + ".job")
        self._fingerprint = _fingerprint(job, config)
        self._made_in = ""

    def resume(self, *, overwrite: bool) -> tuple[int, int]:
        """Cut off what an interruption left half written; return how many lines there are, and how many are errors."""
        lines = errors = complete = 0
        try:
            if overwrite:
                self._path.unlink(missing_ok=True)
            if not self._path.exists():
                return 0, 0
            made_of, _, self._made_in = (self._note.read_text() if self._note.exists() else "").partition(" ")
            if made_of != self._fingerprint:
                message = f"{self._path} was made with other arguments or files; use another --output, or --overwrite."
                raise ConfigError(message, "output")
            with self._path.open("rb+") as file:
                for row in file:
                    if not row.endswith(b"\n"):
                        break
                    lines, errors, complete = lines + 1, errors + row.startswith(_ERROR), complete + len(row)
                file.truncate(complete)
        except OSError as error:
            raise self._unwritable(error) from None
        return lines, errors

    def check_type(self, dtype: str) -> None:
        """Refuse to resume in another type, which another machine may choose: scores would differ between lines."""
        if self._made_in and dtype not in ("auto", self._made_in):
            message = f"{self._path} was made in {self._made_in}, and this run computes in {dtype}; use "
            raise ConfigError(f"{message}--dtype {self._made_in}, another --output, or --overwrite.", "dtype")

    def open(self, dtype: str) -> BinaryIO:
        """Open the file to append to it."""
        try:
            self._note.write_text(f"{self._fingerprint} {dtype}")
            return self._path.open("ab")
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self._path} cannot be written: {error.strerror}.", "output")


def _fingerprint(job: Job, config: EngineConfig) -> str:
    """Return a hash of everything that scores depend on except the type; of the input, its beginning and its size."""
    arguments = {name: value for name, value in asdict(job).items() if name not in ("items", "output", "batch_size")}
    with job.items.open("rb") as file:
        head = file.read(65536)
    engine = [config.model, config.revision, config.tokenizer_path, config.multi_item_scoring_delimiter]
    text = json.dumps([arguments, *engine, job.items.stat().st_size], default=str).encode()
    return hashlib.blake2b(text + head, digest_size=16).hexdigest()
