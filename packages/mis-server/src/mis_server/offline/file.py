"""Scoring a file without HTTP: `mis-server score`. Files may have any length, and runs may be interrupted.

Line `n` of the output belongs to line `n` of the input, and lines are written in order: the complete lines
of the output are done, however the last run ended. A note beside the output says what it was made with, so
that no run resumes it with another query, other labels or another model.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.offline.asked import Asked, decisive
from mis_server.offline.rows import ERROR, Row, batches, read_line, write_line
from mis_server.offline.scorer import Scorer, running_scorer

_IN_FLIGHT = 16  # batches; of few items each, many of them fill a step


@dataclass(frozen=True, kw_only=True)
class Job(Asked):
    """A file to score.

    Attributes:
        items: JSON lines. A line is a text, a list of token ids, or an object with `item` or a list `items` and,
            optionally, `query` and `id`, which is copied to the output.
        output: JSON lines, `{"scores": [...]}` or `{"error": {"code", "message"}}` for each line of `items`.
    """

    items: Path
    output: Path


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
    async with running_scorer(job, config) as scorer:
        output.check_type(scorer.dtype)
        with (
            output.open(scorer.dtype) as file,
            tqdm(total=total, initial=done, unit="item", disable=not progress, smoothing=0.1) as bar,
        ):
            return errors + await _append(job, scorer, done, file, bar)


async def _append(job: Job, scorer: Scorer, done: int, file: BinaryIO, bar: tqdm) -> int:
    """Write the lines that are not done; return how many have an error."""
    errors = 0
    waiting: deque[tuple[list[Row], asyncio.Task[None]]] = deque()

    async def write_first() -> int:
        batch, task = waiting.popleft()
        await task
        file.write(b"".join(map(write_line, batch)))
        file.flush()
        bar.update(len(batch))
        return sum(row.error is not None for row in batch)

    try:
        for batch in batches(_rows(job, skip=done), job):
            waiting.append((batch, asyncio.create_task(scorer.score(batch))))
            if len(waiting) == _IN_FLIGHT:
                errors += await write_first()
        while waiting:
            errors += await write_first()
    finally:
        for _, task in waiting:
            task.cancel()
    return errors


def _rows(job: Job, skip: int) -> Iterator[Row]:
    with job.items.open("rb") as file:
        for text in islice(file, skip, None):
            yield read_line(text, job.query)


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
                    lines, errors, complete = lines + 1, errors + row.startswith(ERROR), complete + len(row)
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
    with job.items.open("rb") as file:
        head = file.read(65536)
    arguments = {name: value for name, value in decisive(job, config).items() if name not in ("items", "output")}
    text = json.dumps([arguments, job.items.stat().st_size], default=str).encode()
    return hashlib.blake2b(text + head, digest_size=16).hexdigest()
