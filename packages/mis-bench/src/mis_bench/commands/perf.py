"""`mis-bench perf`."""

import tempfile
from pathlib import Path

import click

from mis_bench.commands.measuring import checkpoint, new_folder, one_sentence, progress, show, vocabulary

MODEL = "random:qwen3-0.6b/2"


@click.command()
@click.option("--base", show_default="where the branch left main", help="Commit to compare with.")
@click.option(
    "--repository",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Checkout of this project; its working tree is what is measured.",
)
@click.option("--model", "model_spec", default=MODEL, help="Checkpoint: a directory, a name, or random:SHAPE/DIVISOR.")
@click.option("--sessions", type=click.IntRange(1), default=3, help="Pairs of processes; more are surer.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="none is kept",
    help="Folder for plan and records.",
)
def perf(base: str | None, repository: Path, model_spec: str, sessions: int, output: Path | None) -> None:
    """Compare the engine's speed with that of another commit, turn by turn on this machine.

    Exit status 1 if the working tree is slower than the limits allow.
    """
    from mis_bench.perf.judge import NotMeasured, judge, worst
    from mis_bench.perf.run import compare
    from mis_bench.perf.sources import PerfError, put_in_place
    from mis_bench.perf.table import as_table, sentences

    model = checkpoint(model_spec)
    assert model is not None, "there is a default"
    vocab_size = vocabulary(model, None)
    with tempfile.TemporaryDirectory(prefix="mis-perf-") as scratch, one_sentence():
        folder = new_folder(output or Path(scratch) / "results", "perf", "plan.json")
        try:
            with progress() as bars:
                bar = bars.add_task("both versions put in place", total=None)
                sources = put_in_place(repository.resolve(), base, Path(scratch).resolve())
                results = compare(
                    sources,
                    model,
                    vocab_size,
                    folder,
                    sessions=sessions,
                    on_progress=lambda what, done, total: bars.update(
                        bar, description=what, completed=done, total=total
                    ),
                )
            compared = judge(results)
        except (PerfError, NotMeasured) as error:
            raise click.ClickException(str(error)) from None
    show(as_table(results, compared))
    for sentence in sentences(results, compared):
        click.echo(sentence)
    if output is not None:
        click.echo(f"Written: {folder}", err=True)
    if worst(each.status for each in compared) == "fail":
        raise SystemExit(1)
