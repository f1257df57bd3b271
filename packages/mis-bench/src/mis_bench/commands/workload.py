"""`mis-bench workload`."""

from pathlib import Path

import click

from mis_bench.workload import CANONICAL, WorkloadNameError, build_workload
from mis_bench.workloads.traces import build_trace


@click.command()
@click.argument("name", default=CANONICAL)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of printing.")
def workload(name: str, output: Path | None) -> None:
    """Print a workload as JSON, or a trace of many as JSON lines.

    NAME is KIND-Q-N-L: Q query tokens and N items of L tokens, all alike in length. The KIND ragged varies the
    lengths, duplicates repeats items, text has words for tokens; any other word stands for other tokens. Or NAME is
    that of a request met in production: track_low, track_mean, track_high, home_low, home_mean or home_high. An
    ending such as @8 asks for 8 labels. The JSON holds the name, a checksum, and the body for POST /v1/score.

    NAME may also be LOAD:RATE:COUNT or LOAD:RATE:COUNT:SEED: COUNT requests that arrive at random, RATE a second. LOAD
    is a workload's name or mixed, for 3, 30 or 500 items. Each line holds a time in seconds and a request.
    """
    try:
        content, summary = _trace(name) if ":" in name else _workload(name)
    except WorkloadNameError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    if output is None:
        click.echo(content, nl=False)
        return
    try:
        output.write_text(content, encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(output), error.strerror) from None
    click.echo(f"{output}: {summary}")


def _workload(name: str) -> tuple[str, str]:
    built = build_workload(name)
    unit = "characters" if isinstance(built.query, str) else "tokens"
    return built.to_json() + "\n", f"{built.name}, {built.num_tokens:,} {unit}, sha256 {built.sha256}"


def _trace(name: str) -> tuple[str, str]:
    built = build_trace(name)
    seconds = built.arrivals[-1].arrival_s
    return built.to_jsonl(), f"{name}, {len(built.arrivals):,} requests in {seconds:.1f} s, sha256 {built.sha256}"
