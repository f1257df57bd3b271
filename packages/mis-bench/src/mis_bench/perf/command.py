"""`mis-bench perf`."""

import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import click

from mis_bench.interruption import keeping
from mis_bench.options import checkpoint, new_folder, progress, vocabulary

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--base", show_default="where the branch left main", help="Commit to compare with.")
@click.option(
    "--repository", type=FOLDER, default=Path(), help="Checkout of this project, whose working tree is measured."
)
@click.option(
    "--model", default="random:qwen3-0.6b/2", help="Checkpoint: a directory, a name, or `random:SHAPE/DIVISOR`."
)
@click.option(
    "--sessions",
    type=click.IntRange(1),
    default=3,
    help="Number of pairs of processes. More pairs give narrower intervals.",
)
@click.option("--output", type=FOLDER, show_default="none is kept", help="Folder for plan and records.")
def perf(base: str | None, repository: Path, model: str, sessions: int, output: Path | None) -> None:
    """Compare the engine's speed with another commit's.

    The working tree and the other commit are measured in turn on this machine.

    The exit status is 1 if the working tree is slower than the limits allow.
    """
    from mis_bench.measuring.execution import execute
    from mis_bench.perf.judge import judge, sentences, table_of, worst
    from mis_bench.perf.plan import OPTIONS, plan_of
    from mis_bench.perf.side import Side
    from mis_bench.perf.sources import SIDES, check_out
    from mis_bench.targets.blocking import BlockingOpener

    directory = checkpoint(model)
    assert directory is not None, "there is a default"
    with tempfile.TemporaryDirectory(prefix="mis-perf-") as scratch:
        folder = new_folder(output or Path(scratch) / "results", "perf", "plan.json")
        kept = nullcontext() if output is None else keeping(folder)
        with kept, progress("both versions put in place") as show:
            sources = check_out(repository.resolve(), base, Path(scratch).resolve())
            openers = {side: BlockingOpener(partial(Side, sources.folder / side, directory, OPTIONS)) for side in SIDES}
            plan = plan_of(sources, directory, vocabulary(directory, None), sessions)
            results = execute(plan, openers, folder, on_progress=show).results
        compared = judge(results)
    table_of(results, compared).show()
    for sentence in sentences(results, compared):
        click.echo(sentence)
    if output is not None:
        click.echo(f"Written: {folder}", err=True)
    if worst(each.status for each in compared) == "fail":
        raise SystemExit(1)
