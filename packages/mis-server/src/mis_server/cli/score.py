"""`mis-server score`: files to files, here or on a Ray cluster."""

from dataclasses import dataclass
from typing import Any

import click

from mis_core.config import EngineConfig
from mis_server.cli.command import Command
from mis_server.cli.files import FORMATS, MANY, AnsweredFiles, ClusterOptions
from mis_server.cli.options import declared, options_of, read, read_engine
from mis_server.telemetry.logs import log_to_stderr


def _without_mark(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Remove the byte order mark of a file whose text a shell put here."""
    return text and text.removeprefix("\ufeff")


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """The options of the command without those of the engine and of a cluster, in the order of `--help`."""

    items: str | None = declared(
        None,
        "File of items to score, in JSONL or Parquet. JSONL may be compressed by gzip or zstd. `-` is standard input. "
        "Required without --ray. Default: none.",
    )
    output: str | None = declared(
        None,
        "File for the scores, or `-` for standard output. It is a folder if the format is Parquet, and with --ray. "
        "Default: next to the items.",
    )
    query: str | None = declared(
        None, "Text of the query, for lines without `query`. Default: none.", callback=_without_mark
    )
    labels: tuple[str, ...] = declared((), "Label texts of any length, such as ' yes' ' no'. Default: none.")
    label_token_ids: tuple[int, ...] = declared((), "Labels as token ids. Default: none.")
    apply_softmax: bool = declared(False, "Return a softmax over the labels.", show_default=False)
    item_first: bool = declared(False, "Put each item before the query.", show_default=False)
    temperature: float = declared(1.0, "Temperature of the softmax.")
    rerank: bool = declared(
        False, "Treat items as documents: each gets one score, its relevance to the query. Needs no labels."
    )
    batch_size: int = declared(512, "Maximum items per request.")
    batch_tokens: int = declared(65536, "Approximate number of tokens of items at which a request is full.")
    output_format: str | None = declared(
        None,
        "Format of the scores: `jsonl`, or `parquet` for a folder of Parquet files. Default: `parquet` if --output "
        "(with --ray, --input) ends in .parquet, otherwise `jsonl`.",
        type=FORMATS,
    )
    score_column: str = declared(
        "scores", "Name of the scores in the output: a field of JSON lines, or a column of Parquet.", metavar="NAME"
    )
    overwrite: bool = declared(False, "Start over instead of resuming what this command wrote.", show_default=False)
    ray: str | None = declared(
        None,
        "Score on the Ray cluster at ADDRESS. Without ADDRESS: on the cluster that runs on this machine or that "
        "RAY_ADDRESS names, or on a new one on this machine. Default: no cluster.",
        group=MANY,
        flag_value="",
        metavar="[ADDRESS]",
    )
    input: str | None = declared(
        None,
        "Files to score with --ray: a file, folder or glob of .jsonl, .jsonl.gz, .jsonl.zst and .parquet files, on "
        "disk or at s3:// or gs://. Required with --ray. Default: none.",
        group=MANY,
    )


def _score(**given: Any) -> None:
    """Score the rows of files with MODEL.

    The command needs no server. With --ray, it runs on a cluster.

    Each line is a text, a list of token ids, or an object with `item` or `items` and, optionally, `query` and `id`. The
    output has one line for each. To resume an interrupted run, start it again.
    """
    engine, options = read_engine(given), read(ScoreOptions, given)
    if not (options.labels or options.label_token_ids or options.rerank):
        raise click.UsageError("--labels is missing: texts such as ' yes' ' no', or --label-token-ids.")
    log_to_stderr("human", "warning")
    from mis_server.offline import OfflineQuery

    asked = read(OfflineQuery, given)
    here = {"input": options.items, "input_option": "items"} if options.ray is None else {"input_option": "input"}
    read(AnsweredFiles, given, answers="scores", **here).answer(asked, engine, read(ClusterOptions, given))


SCORE = Command("score", _score, [*options_of(ScoreOptions), *options_of(ClusterOptions), *options_of(EngineConfig)])
"""The command."""
