"""`mis-bench profile` and `mis-bench compare-profiles`."""

import asyncio
import datetime
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from mis_bench.artifact import ArtifactError, read_artifact
from mis_bench.options import ABOVE_0, caption, checkpoint, identity, new_folder, progress, target_options, vocabulary
from mis_bench.profile.records import PROFILE, Profile, Scenario
from mis_bench.profile.scenarios import plan_of

if TYPE_CHECKING:
    from mis_bench.targets.target import Target
    from mis_core import Engine


@click.command()
@click.option(
    "--scenario", type=click.Choice(get_args(Scenario)), required=True, help="Part of the computation to profile."
)
@click.option("--model", show_default="none", help="Checkpoint: a directory, a name, or `random:SHAPE/DIVISOR`.")
@target_options
@click.option(
    "--workload",
    "name",
    show_default="the scenario's",
    help="Workload: a NAME as for `mis-bench workload`. The scenario `batch-scaling` also sends fewer of its items.",
)
@click.option(
    "--requests", type=click.IntRange(0), show_default="the scenario's", help="Number of timed requests of each size."
)
@click.option(
    "--profile-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    show_default="none",
    help="Folder that the server has as its --profile-dir. The trace is copied from there.",
)
def profile(
    scenario: Scenario,
    model: str | None,
    spec: str,
    options: dict[str, str],
    vocab_size: int | None,
    hardware: str | None,
    timeout: float,
    output: Path | None,
    name: str | None,
    requests: int | None,
    profile_dir: Path | None,
) -> None:
    """Profile a scenario.

    The command writes a trace for XProf and Perfetto, and prints where time or memory went.

    \b
    end-to-end     whole requests, with every Python call in the trace
    single         latency of one item
    batch-scaling  throughput by number of items
    memory         what lies on the devices; no latencies
    kernels        hot spots among the operations
    """  # noqa: D301 - click reads this character
    from mis_bench.profile.tables import tables

    kind, _, url = spec.partition("=")
    if spec != "engine" and (kind != "mis" or not url):
        message = f"{spec[:80]!r} cannot be profiled; write engine or mis=http://HOST:PORT."
        raise click.BadParameter(message, param_hint="--target")
    if url and (scenario == "memory" or profile_dir is None):
        raise click.UsageError("Profiling a server needs --profile-dir; memory needs the target engine.")
    plan = plan_of(scenario, name, requests)
    directory = checkpoint(model)
    run_id = identity(datetime.datetime.now(datetime.UTC), f"profile-{scenario}")
    folder = new_folder(output, run_id, PROFILE, "traces", "memory")

    async def profiled_of(on_request: Callable[[], None]) -> Profile:
        from mis_bench.environment import cpu_name, environment, hardware_of
        from mis_bench.profile import run
        from mis_bench.profile.recording import recording_here, recording_server

        target, engine = await _open(spec, options, directory)
        try:
            size = vocabulary(directory, vocab_size)
            subject = run.ProfiledTarget(target, timeout, vocab_size=size, engine=engine, on_request=on_request)
            traces, key = folder / "traces", options.get("admin_key", options.get("api_key"))
            if url and profile_dir:
                recording = recording_server(traces, url, profile_dir, key)
            else:
                recording = recording_here(traces, python_calls=scenario == "end-to-end")
            where = environment(hardware_of(hardware, target.about, cpu_name()))
            return await run.profile(plan, subject, recording, folder, where)
        finally:
            await target.close()

    asked = itertools.count(1)
    with progress(scenario, plan.requests) as show:
        result = asyncio.run(profiled_of(lambda: show(scenario, next(asked), plan.requests)))
        result.keep(folder)
    click.echo(caption(result.target, result.environment.hardware))
    for table in tables(result):
        table.show()
    click.echo(f"Written: {folder}", err=True)


@click.command("compare-profiles")
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("after", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--points", type=ABOVE_0, default=5.0, help="Percentage points by which a stage's share of the time may move."
)
def compare_profiles(before: Path, after: Path, points: float) -> None:
    """Compare how two profiles divide time over stages.

    BEFORE and AFTER are folders of profiles, or their profile.json. Both profiles must be of the same requests. The
    exit status is 1 if the share of a stage moved by more than --points, and 2 if the profiles cannot be compared.
    """
    from mis_bench.profile.comparison import changes, made, table, unlike

    earlier, later = map(_read, (before, after))
    why = list(unlike(earlier, later))
    if why:
        raise click.UsageError(f"The profiles cannot be compared: {'; '.join(why)}.")
    click.echo(f"before: {made(earlier)}\nafter: {made(later)}")
    changed = changes(earlier, later)
    table(changed, points).show()
    moved = [each.stage for each in changed if abs(each.points) > points]
    click.echo(f"Moved by more than {points:g} points: {', '.join(moved) or 'no stage'}.")
    if moved:
        raise SystemExit(1)


def _read(path: Path) -> Profile:
    """Read a profile from its file or its folder; raises `ArtifactError`."""
    file = path / PROFILE if path.is_dir() else path
    found = read_artifact(file)
    if not isinstance(found, Profile):
        raise ArtifactError(f"{file} is not a profile but a {found.schema_version}.")
    return found


async def _open(spec: str, options: dict[str, str], directory: Path | None) -> "tuple[Target, Engine | None]":
    """Return the target and, if it is in this process, its engine."""
    import jax  # takes a second, which help and mistakes need not

    from mis_bench.targets.registry import opener
    from mis_bench.targets.spec import TargetSpec

    jax.config.update(
        "jax_enable_compilation_cache", False
    )  # what is compiled here has the number that operations tell
    target = await opener(TargetSpec(spec, spec, options), model=directory).open()
    return target, getattr(getattr(target, "blocking", None), "engine", None)
