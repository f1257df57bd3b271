"""`mis-bench perf`."""

import tempfile
from pathlib import Path

import click

from mis_bench.commands.measuring import checkpoint, progress, show, vocabulary

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
@click.option("--minutes", type=click.FloatRange(0), default=6.0, help="Stop adding pairs after this long.")
@click.option(
    "--baselines",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="benchmarks/baselines in the repository",
    help="Folder of stored figures, a file for each kind of machine.",
)
@click.option("--update-baseline", is_flag=True, help="Store the figures of the working tree for this machine.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File for the artifact.")
def perf(
    base: str | None,
    repository: Path,
    model_spec: str,
    minutes: float,
    baselines: Path | None,
    update_baseline: bool,
    output: Path | None,
) -> None:
    """Compare the engine's speed with that of another commit, turn by turn on this machine.

    Exit status 1 if the working tree is slower than the limits allow.
    """
    from mis_bench.artifacts.base import ArtifactError
    from mis_bench.perf.compare import Events, compare, starter, workloads
    from mis_bench.perf.errors import PerfError
    from mis_bench.perf.sources import put_in_place
    from mis_bench.perf.stored import baseline_of, beside, file_of
    from mis_bench.perf.table import paired_table, sentences, stored_table

    model = checkpoint(model_spec)
    assert model is not None, "there is a default"
    folder = baselines or repository / "benchmarks" / "baselines"
    asked = workloads(vocabulary(model, None))
    try:
        with tempfile.TemporaryDirectory(prefix="mis-perf-") as scratch, progress() as bar:
            task = bar.add_task("both versions put in place", total=None)
            sources = put_in_place(repository.resolve(), base, Path(scratch).resolve())
            result = compare(
                sources,
                starter(sources, model, asked),
                asked,
                model=model,
                minutes=minutes,
                stored=lambda found: beside(found, folder),
                events=Events(
                    session=lambda number, turns: bar.reset(task, total=turns, description=f"turns, session {number}"),
                    turn=lambda: bar.advance(task),
                ),
            )
        if output is not None:
            result.write(output)
        show(paired_table(result))
        if result.stored is not None:
            show(stored_table(result.stored))
        for sentence in sentences(result):
            click.echo(sentence)
        if update_baseline:
            path = file_of(result.conditions.hardware, folder)
            baseline_of(result).write(path)
            click.echo(f"Written: {path}", err=True)
    except (PerfError, ArtifactError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.FileError(str(error.filename), error.strerror) from None
    if result.verdict == "fail":
        raise SystemExit(1)
