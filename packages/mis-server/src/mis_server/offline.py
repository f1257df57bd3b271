"""Scoring a file without HTTP: `mis-server score`. Any length of file, and any number of interruptions.

Line `n` of the output belongs to line `n` of the input, and lines are written in order: what is complete
in the output is done, whatever ended the run before. Next to the output lies a note of what it was made
with, so that it is never continued with another query, other labels or another model.
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
from mis_core.hub import resolve_model
from mis_core.process.client import EngineClient, EngineFault
from mis_core.process.quarantine import RequestRefused
from mis_core.scoring.request import ScoreResult
from mis_core.scoring.service import SCORE
from mis_core.tokenization import Tokenizer
from mis_server.service import ModelService
from mis_server.settings import ServerConfig
from mis_server.tokenizers.pool import TokenizerPool

_ATTEMPTS = 3  # of a batch whose engine process ended
_RESTART_S = 900.0
_IN_FLIGHT = 3  # batches: one is computed, one waits, one is read or written


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to score.

    Attributes:
        items: JSON lines. A line is a text, a list of token ids, or an object with `item` and perhaps `query`;
            of an object, `id` is copied to the output.
        output: JSON lines, `{"scores": [...]}` or `{"error": {"code", "message"}}` for each line of `items`.
        query: Text for lines without their own.
        labels: Texts, each one token; or none, if there are ids.
        label_token_ids: Ids, or none, if there are texts.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
        item_first: Score `item + query` instead.
        temperature: Divides label log-probabilities; other values than 1 need `apply_softmax`.
        batch_size: Most items of a request to the engine.
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
    """Score what is not yet in the output, and append it.

    Args:
        job: What to score.
        config: The engine.
        overwrite: Begin again, whatever the output holds.
        progress: Show a progress bar on standard error.

    Returns:
        How many lines have an error.

    Raises:
        ConfigError: a file cannot be read, or the output was made with other arguments.
        ModelError: the model cannot be served as it stands.
        EngineUnavailable: the engine ended.
    """
    total = _count_lines(job.items)
    fingerprint = _fingerprint(job, config)
    done, errors, made_in = _continue(job, fingerprint, overwrite)
    _check_type(job, made_in, config.dtype)
    if done == total:
        return errors
    directory = await asyncio.to_thread(resolve_model, config.model)
    tokenizer = await asyncio.to_thread(Tokenizer.from_pretrained, directory)
    async with EngineClient(config) as client:
        info = await client.wait_ready()
        dtype = str(info.summary["dtype"])
        _check_type(job, made_in, dtype)
        async with TokenizerPool(tokenizer) as tokenizers:
            scorer = _Scorer(job, ModelService(client, ServerConfig(engine=config), tokenizers))
            await scorer.check()
            with (
                _open(job, fingerprint, dtype) as output,
                tqdm(total=total, initial=done, unit="item", disable=not progress, smoothing=0.1) as bar,
            ):
                return errors + await _append(job, scorer, done, output, bar)


async def _append(job: Job, scorer: "_Scorer", done: int, output: BinaryIO, bar: tqdm) -> int:
    """Write the lines that are not done; return how many have an error."""
    errors = 0
    waiting: deque[tuple[list[_Line], asyncio.Task[list[bytes]]]] = deque()

    async def write_first() -> int:
        batch, task = waiting.popleft()
        rows = await task
        output.write(b"".join(rows))
        output.flush()
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
    """Asks as a client of the server would, without HTTP."""

    def __init__(self, job: Job, service: ModelService) -> None:
        self._job = job
        self._service = service

    async def check(self) -> None:
        """Refuse what would be wrong with every line.

        Raises:
            ConfigError: names the option.
        """
        try:
            await self._service.parse(SCORE, self._body("a", ["a"]))
        except RequestError as error:
            raise ConfigError(error.message, error.param or "labels") from None

    async def rows(self, lines: list[_Line]) -> list[bytes]:
        """Return the output's lines of a batch that shares a query."""
        good = [line for line in lines if line.error is None]
        scores: Iterator[list[float]] = iter(())
        if good:
            try:
                scores = iter((await self._score(good)).scores.tolist())
            except (RequestError, RequestRefused, EngineFault) as error:
                if len(good) > 1:  # one line is at fault: each for itself, so that the others are scored
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
        line.error = {"code": "missing_query", "message": "The line has no query, and --query is missing."}
    return line


def _count_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", "items") from None


def _note_of(job: Job) -> Path:
    return job.output.with_name(job.output.name + ".job")


def _continue(job: Job, fingerprint: str, overwrite: bool) -> tuple[int, int, str | None]:
    """Cut off what an interruption left half written.

    Returns:
        How many lines the output has, how many of them are errors, and the type they were computed in, if there is one.
    """
    note = _note_of(job)
    lines = errors = complete = 0
    try:
        if overwrite:
            job.output.unlink(missing_ok=True)
        if not job.output.exists():
            return 0, 0, None
        made_of, _, made_in = (note.read_text() if note.exists() else "").partition(" ")
        if made_of != fingerprint:
            raise ConfigError(
                f"{job.output} was made with other arguments or files; give another --output, or --overwrite.", "output"
            )
        with job.output.open("rb+") as file:
            for row in file:
                if not row.endswith(b"\n"):
                    break
                lines, errors, complete = lines + 1, errors + row.startswith(_ERROR), complete + len(row)
            file.truncate(complete)
    except OSError as error:
        raise ConfigError(f"{job.output} cannot be written: {error.strerror}.", "output") from None
    return lines, errors, made_in


def _check_type(job: Job, made_in: str | None, dtype: str) -> None:
    """Refuse to continue in another type, which another machine may choose: scores would depend on the line."""
    if made_in is not None and dtype not in ("auto", made_in):
        raise ConfigError(
            f"{job.output} was made in {made_in}, and this run computes in {dtype}; say --dtype {made_in}, or give "
            "another --output, or --overwrite.",
            "dtype",
        )


def _open(job: Job, fingerprint: str, dtype: str) -> BinaryIO:
    try:
        _note_of(job).write_text(f"{fingerprint} {dtype}")
        return job.output.open("ab")
    except OSError as error:
        raise ConfigError(f"{job.output} cannot be written: {error.strerror}.", "output") from None


def _fingerprint(job: Job, config: EngineConfig) -> str:
    """Return a hash of all that scores depend on but the type; of the input, what it begins with and its size."""
    arguments = {name: value for name, value in asdict(job).items() if name not in ("items", "output", "batch_size")}
    with job.items.open("rb") as file:
        head = file.read(65536)
    size = job.items.stat().st_size
    engine = [config.model, config.multi_item_scoring_delimiter]
    text = json.dumps([arguments, *engine, size], default=str).encode()
    return hashlib.blake2b(text + head, digest_size=16).hexdigest()
