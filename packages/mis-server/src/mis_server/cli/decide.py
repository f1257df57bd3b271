"""`mis-server decide`: questions about the states of files, here or on a Ray cluster."""

from dataclasses import dataclass
from typing import Any, Literal

import click

from mis_core.config import EngineConfig
from mis_server.cli.command import Command
from mis_server.cli.files import FORMATS, MANY, AnsweredFiles, ClusterOptions
from mis_server.cli.options import declared, options_of, read, read_engine
from mis_server.settings import ServerConfig
from mis_server.telemetry.logs import log_to_stderr


@dataclass(frozen=True, kw_only=True)
class DecideOptions:
    """The options of the command without those of the engine and of a cluster, in the order of `--help`."""

    input: str | None = declared(
        None,
        "File of states, in JSONL or Parquet. JSONL may be compressed by gzip or zstd. `-` is standard input. With "
        "--ray, a file, folder or glob of .jsonl, .jsonl.gz, .jsonl.zst and .parquet files, on disk or at s3:// or "
        "gs://. Required. Default: none.",
    )
    questions: str | None = declared(
        None,
        "JSON file that maps ids to questions of System One, for lines without `questions`. Default: none.",
        metavar="FILE",
    )
    output: str | None = declared(
        None,
        "File for the answers, or `-` for standard output. It is a folder if the format is Parquet, and with --ray. "
        "Default: next to the input.",
    )
    abstain_below: float | None = declared(
        None,
        "Confidence below which an answer's id is listed in `x_abstained`. Default: none.",
        type=click.FloatRange(0, 1),
    )
    on_error: Literal["request", "item"] = declared(
        "request",
        "What happens if a question cannot be asked. `request` gives its line an error. `item` gives the question an "
        "entry in `x_errors`.",
        type=click.Choice(["request", "item"]),
    )
    output_format: str | None = declared(
        None,
        "Format of the answers: `jsonl`, or `parquet` for a folder of Parquet files. Default: `parquet` if --output "
        "(with --ray, --input) ends in .parquet, otherwise `jsonl`.",
        type=FORMATS,
    )
    overwrite: bool = declared(False, "Start over instead of resuming what this command wrote.", show_default=False)
    ray: str | None = declared(
        None,
        "Answer on the Ray cluster at ADDRESS. Without ADDRESS: on the cluster that runs on this machine or that "
        "RAY_ADDRESS names, or on a new one on this machine. Default: no cluster.",
        group=MANY,
        flag_value="",
        metavar="[ADDRESS]",
    )


def _decide(**given: Any) -> None:
    """Answer questions about the states of files with MODEL.

    The command needs no server. With --ray, it runs on a cluster.

    Each line is an object with `state` and, optionally, `questions` and `id`. The output has one line for each, with
    the reply of /v1/systemone. To resume an interrupted run, start it again.
    """
    engine, options = read_engine(given), read(DecideOptions, given)
    log_to_stderr("human", "warning")
    from mis_server.offline.decisions import OfflineDecisions, read_questions

    path = options.questions
    asked = OfflineDecisions(
        model_name=ServerConfig(engine=engine).model_name,
        questions=None if path is None else read_questions(path),
        questions_file=path,
        abstain_below=options.abstain_below,
        on_error=options.on_error,
    )
    read(AnsweredFiles, given, answers="decisions", input_option="input").answer(
        asked, engine, read(ClusterOptions, given)
    )


DECIDE = Command(
    "decide", _decide, [*options_of(DecideOptions), *options_of(ClusterOptions), *options_of(EngineConfig)]
)
"""The command."""
