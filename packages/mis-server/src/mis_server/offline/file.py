"""Answering the rows of a file without HTTP. Files may have any length, and runs may be interrupted.

Line `n` of the output belongs to line `n` of the input, and lines are written in order: the complete lines
of the output are done, however the last run ended. A note beside the output says what it was made with, so
that no run resumes it with another query, other labels or another model.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.offline.asked import OfflineTask, decisive
from mis_server.offline.inputs import STANDARD_INPUT, Input, Survey, check_parquet, opened
from mis_server.offline.output import Output, is_standard_output, note_of, output_of
from mis_server.offline.places import Place, check_apart, engine_places
from mis_server.offline.rows import InputRow
from mis_server.offline.scorer import Scorer, running_scorer
from mis_server.offline.window import in_order


@dataclass(frozen=True, kw_only=True)
class Job:
    """A file to score.

    Attributes:
        asked: What is asked of every row.
        input: Path of a Parquet file, or of JSON lines, as they are or compressed by gzip or zstd; or `-` for standard
            input. `asked` says what a row holds.
        output: Path of JSON lines, an answer or `{"error": {"code", "message"}}` for each row of the input, with the
            row's id; or `-` for standard output.
        format: `jsonl`, or `parquet`: then the output is a folder of Parquet files.
        input_option: The option that the input was given by, for errors.
    """

    asked: OfflineTask
    input: str
    output: str
    format: str = "jsonl"
    input_option: str = "input"

    def __post_init__(self) -> None:
        # A folder may be any, such as the current one.
        output = self.output if self.format == "jsonl" else "-"
        for name, option in ((self.input, self.input_option), (output, "output")):
            if not Path(name).name:
                raise ConfigError(f"{name!r} is not a file name.", option)


def score_file(job: Job, config: EngineConfig, *, overwrite: bool = False, progress: bool = True) -> int:
    """Score the lines that are not in the output yet, and append them.

    Args:
        job: What to score.
        config: The engine's options.
        overwrite: Start over, whatever the output has.
        progress: Show a progress bar on standard error.

    Returns:
        How many lines have an error.

    Raises:
        ConfigError: a file cannot be read or written, the input changed meanwhile, or the output was made with other
            arguments, is not ours, or is read.
        ModelError: the model cannot be served as it stands.
        EngineUnavailable: the engine ended again and again.
    """
    if job.format == "parquet":
        check_parquet("output")
    _check_apart(job, config)
    # Outside of an event loop, where Ctrl-C would wait for the end of a read from standard input.
    with opened(job.input, job.input_option, job.asked) as source:
        survey = source.survey()
        with _output(job, config, source, survey) as output:
            done, errors = output.resume(overwrite=overwrite)
            output.check_type(config.dtype)
            if done > survey.rows:
                message = f"{job.output} has {done} rows, but the input has {survey.rows}; use another --output, or "
                raise ConfigError(f"{message}--overwrite.", "output")
            if done == survey.rows:  # which needs no engine
                with output.opened(""):
                    return errors
            rows = source.rows(survey, skip=done)
            bar = partial(tqdm, total=survey.rows, initial=done, unit="item", disable=not progress, smoothing=0.1)
            more = asyncio.run(_score(job, config, rows, output, bar))
    return errors + more


async def _score(
    job: Job, config: EngineConfig, rows: Iterator[InputRow], output: Output, new_bar: Callable[[], tqdm]
) -> int:
    """Write the rows; return how many of them have an error."""
    async with running_scorer(job.asked, config) as scorer:
        output.check_type(scorer.dtype)
        with output.opened(scorer.dtype), new_bar() as bar:  # no bar before an error at the start
            return await _append(job, scorer, rows, output, bar)


async def _append(job: Job, scorer: Scorer, rows: Iterator[InputRow], output: Output, bar: tqdm) -> int:
    async def score(batch: list[InputRow]) -> None:
        await scorer.score(batch)
        bar.update(len(batch))

    errors = 0
    try:
        async with contextlib.aclosing(in_order(rows, score, job.asked)) as runs:
            async for run in runs:
                await output.append(run)
                errors += sum(row.error is not None for row in run)
    except ConfigError as error:
        if error.option == job.input_option:  # the rows may be of another input than the note says
            output.void()
        raise
    return errors


def _check_apart(job: Job, config: EngineConfig) -> None:
    """Refuse to write what is read, before anything is opened."""
    source = "/dev/stdin" if job.input == STANDARD_INPUT else job.input
    read = [
        Place("the input", source),
        Place("the note of the input", str(note_of(Path(source)))),
        *engine_places(config),
        *job.asked.also_read,
    ]
    written = [job.output]
    if is_standard_output(job.output):
        written = ["/dev/stdout"]
    elif job.format == "jsonl":
        written.append(str(note_of(Path(job.output))))
    check_apart(read, written)


def _output(job: Job, config: EngineConfig, source: Input, survey: Survey) -> contextlib.AbstractContextManager[Output]:
    """Return the output, which knows everything that it depends on except the type."""
    made_with = decisive(job.asked, config, format=job.format) | {"input": survey.digest}
    if job.format == "parquet":
        from mis_server.offline.parquet import output_folder

        return contextlib.nullcontext(output_folder(job.output, made_with, job.asked, source))
    text = json.dumps(made_with, default=str).encode()
    fingerprint = hashlib.blake2b(text, digest_size=16).hexdigest()
    return output_of(job.output, fingerprint, job.asked.write_lines)
