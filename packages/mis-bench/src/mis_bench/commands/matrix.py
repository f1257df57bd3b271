"""`mis-bench matrix`."""

import contextlib
import itertools
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mis_bench.commands.measuring import (
    built,
    caption,
    checkpoint,
    identity,
    one_sentence,
    opened,
    progress,
    show,
    target_options,
    vocabulary,
)
from mis_bench.targets.options import is_secret, without_secrets
from mis_bench.workload import CANONICAL

if TYPE_CHECKING:
    from mis_bench.artifacts.matrix import ScoreMatrix
    from mis_bench.artifacts.matrix_row import MatrixRow

CHUNK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 500)


def _sizes(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"{text[:80]!r} is not a list of numbers such as 1,32,500.")
    return tuple(dict.fromkeys(int(part) for part in parts))


@click.command()
@click.option("--model", help="Checkpoint: a directory, a name, or random:SHAPE/DIVISOR.")
@target_options
@click.option("--workload", "workload_name", default=CANONICAL, help="KIND-Q-N-L, or another name of a workload.")
@click.option(
    "--view",
    type=click.Choice(["portable", "best-native"]),
    default="portable",
    help="portable: the client cuts the request into chunks. best-native: the server does, as it likes best.",
)
@click.option(
    "--chunk-sizes",
    callback=_sizes,
    show_default="1,2,4 ... 256,500; best-native 0",
    help="Items of a chunk, separated by commas; 0, in the view best-native, leaves it to the server.",
)
@click.option("--algorithm", "algorithms", multiple=True, show_default="auto", help="scoring_algorithm; repeatable.")
@click.option("--mask", "masks", multiple=True, show_default="auto", help="mask_impl; repeatable.")
@click.option(
    "--cache",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    help="cold: the target forgets the query before every run.",
)
@click.option("--warmup-runs", type=click.IntRange(1), default=1, help="Runs of a configuration that do not count.")
@click.option("--sweep-runs", type=click.IntRange(1), default=5, help="Timed runs of every configuration.")
@click.option("--confirm-runs", type=click.IntRange(1), default=7, help="Timed runs of those that are confirmed.")
@click.option(
    "--hourly-cost",
    type=click.FloatRange(0, min_open=True),
    show_default="unknown",
    help="US dollars an hour of the target's machine, for the cost of a run.",
)
def matrix(
    model: str | None,
    spec: str,
    options: dict[str, str],
    vocab_size: int | None,
    hardware: str | None,
    timeout: float,
    output: Path | None,
    workload_name: str,
    view: str,
    chunk_sizes: tuple[int, ...] | None,
    algorithms: tuple[str, ...],
    masks: tuple[str, ...],
    cache: str,
    warmup_runs: int,
    sweep_runs: int,
    confirm_runs: int,
    hourly_cost: float | None,
) -> None:
    """Find the chunk size and layout with most items a second, and confirm it.

    Writes a folder: run_metadata.json, chunk_N.json for every configuration as soon as it is measured,
    matrix_results.json and mission.log. The same command resumes an interrupted mission. Exit status 1 if no
    configuration may win.
    """  # fmt: skip
    from mis_bench.artifacts.matrix import MatrixPlan, RunMetadata
    from mis_bench.artifacts.matrix_row import Configuration
    from mis_bench.artifacts.parts import WorkloadPart
    from mis_bench.environment import environment
    from mis_bench.matrix.folder import MissionError, begin
    from mis_bench.matrix.mission import Mission, run_mission

    directory = checkpoint(model)
    workload = replace(built(workload_name, vocabulary(directory, vocab_size)), apply_softmax=True)
    sizes = _checked(chunk_sizes, view, workload.num_items, options)
    plan = MatrixPlan(
        target=without_secrets(spec),
        model=model,
        options={name: value for name, value in options.items() if not is_secret(name)},
        evaluation_view="portable" if view == "portable" else "best_native",
        cache="cold" if cache == "cold" else "warm",
        workload=WorkloadPart.of(workload),
        configurations=[
            Configuration(chunk_size=size, scoring_algorithm=algorithm, mask_impl=mask)
            for algorithm, mask, size in itertools.product(
                dict.fromkeys(algorithms or ("auto",)), dict.fromkeys(masks or ("auto",)), sizes
            )
        ],
        warmup_runs=warmup_runs,
        sweep_runs=sweep_runs,
        confirm_runs=confirm_runs,
        timeout_seconds=timeout,
        hourly_cost=hourly_cost,
    )
    where = environment(hardware)
    name = f"matrix-{plan.target}-{workload.name}-{view}".lower()
    folder = output or Path("results") / re.sub(r"[^a-z0-9.@]+", "-", name)
    metadata = RunMetadata(environment=where, run_id=identity(where.timestamp, "matrix"), plan=plan)
    try:
        with one_sentence(), _logged(folder), progress() as bar:
            task = bar.add_task("runs", total=0)
            mission = Mission(
                folder=folder,
                metadata=begin(folder, metadata),
                workload=workload,
                options=options,
                open=lambda given: opened(spec, directory, given, timeout),
                hardware=hardware,
                on_plan=lambda runs: bar.update(task, total=(bar.tasks[task].total or 0) + runs),
                on_run=lambda runs: bar.advance(task, runs),
            )
            found = run_mission(mission)
    except MissionError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        raise click.ClickException(f"Interrupted. Repeat the command to go on: {folder} keeps what is done.") from None
    for table in _tables(found):
        show(table)
    click.echo(caption(found.target, found.environment.hardware))
    for note in found.notes:
        click.echo(note)
    click.echo(f"Written: {folder}", err=True)
    if found.summary.recommendation is None:
        click.echo("No configuration is recommended: none may win, or the confirmation failed.", err=True)
        raise SystemExit(1)


def _checked(sizes: tuple[int, ...] | None, view: str, items: int, options: dict[str, str]) -> tuple[int, ...]:
    own = options.get("multi_item_scoring_chunk_size", "0")
    if own != "0":
        raise click.BadParameter(
            "multi_item_scoring_chunk_size is what a matrix sweeps: leave it out, or take --view best-native "
            f"--chunk-sizes {own}.",
            param_hint="--option",
        )
    if sizes is None:
        return (0,) if view == "best-native" else (*(size for size in CHUNK_SIZES if size < items), items)
    if view == "portable" and 0 in sizes:
        raise click.BadParameter("0 is for --view best-native.", param_hint="--chunk-sizes")
    if max(sizes) > items:
        raise click.BadParameter(f"{max(sizes)} is more than the workload's {items} items.", param_hint="--chunk-sizes")
    return sizes


@contextlib.contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """Write what a mission does to its log file, with times."""
    from mis_bench.matrix.folder import LOG

    folder.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("mis_bench.matrix")
    handler = logging.FileHandler(folder / LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _tables(found: "ScoreMatrix") -> Iterator[Table]:
    best = found.summary.recommendation
    for title, rows in (("sweep", found.results), ("confirm", found.confirm_results)):
        if not rows:
            continue
        table = Table(title=f"{title}, {found.evaluation_view}, {found.workload.name}")
        for name in ("chunk", "algorithm", "mask"):
            table.add_column(name)
        for name in (
            "calls",
            "items/s",
            "p50 ms",
            "p95 ms",
            "mean ms",
            "call p95 ms",
            "first run",
            "steps/call",
            "usd/run",
        ):
            table.add_column(name, justify="right")
        table.add_column("status")
        for row in rows:
            reasons = found.summary.ineligible if title == "sweep" else found.summary.ineligible_confirmed
            why = reasons.get(row.configuration.name)
            table.add_row(*_cells(row), _verdict(row, row.configuration == best, why))
        yield table


def _cells(row: "MatrixRow") -> list[str]:
    chosen = row.configuration
    figures = (
        (row.throughput_items_sec, "{:,.1f}"), (row.p50_total_e2e_ms, "{:,.1f}"), (row.p95_total_e2e_ms, "{:,.1f}"),
        (row.mean_total_e2e_ms, "{:,.1f}"), (row.p95_chunk_call_ms, "{:,.1f}"), (row.first_run_penalty_ratio, "{:.2f}"),
        (row.steps_per_call, "{:.1f}"), (row.usd_per_run, "{:.2g}"),
    )  # fmt: skip
    cells = ["" if value is None else form.format(value) for value, form in figures]
    return [str(chosen.chunk_size), chosen.scoring_algorithm, chosen.mask_impl, str(row.num_chunks), *cells]


def _verdict(row: "MatrixRow", is_best: bool, why: str | None) -> str:
    if row.reason is not None:
        return f"{row.status}: {row.reason}"
    return "recommended" if is_best else why or "ok"
