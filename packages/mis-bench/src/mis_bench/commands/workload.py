"""`mis-bench workload`."""

from pathlib import Path

import click

from mis_bench.workload import CANONICAL, build_workload


@click.command()
@click.argument("name", default=CANONICAL)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of printing.")
def workload(name: str, output: Path | None) -> None:
    """Print a workload as JSON.

    NAME is KIND-Q-N-L: Q query tokens and N items of L tokens, all alike in length. The KIND ragged varies the
    lengths, text has words for tokens; rerank, decisions and loglikelihoods ask for those instead of scores; any other
    word stands for other tokens. Or NAME is that of a request met in production: track_low, track_mean, track_high,
    home_low, home_mean or home_high. An ending such as @8 asks for 8 labels. The JSON holds the name, a checksum, and
    the body for POST /v1/score, or for the other task.
    """
    built = build_workload(name)
    if output is None:
        click.echo(built.to_json())
        return
    output.write_text(built.to_json() + "\n", encoding="utf-8")
    unit = "words" if isinstance(built.query, str) else "tokens"
    click.echo(f"{output}: {built.name}, {built.num_tokens:,} {unit}, sha256 {built.sha256}")
