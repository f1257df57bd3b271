"""`mis-bench profile`."""

import datetime
from pathlib import Path
from typing import get_args

import click

from mis_bench.artifacts.profile import Scenario
from mis_bench.commands.measuring import (
    caption,
    checkpoint,
    identity,
    new_folder,
    one_sentence,
    opened,
    progress,
    show,
    target_options,
    vocabulary,
)
from mis_bench.targets.limited import TimeLimited
from mis_bench.targets.synchronous import with_timeout
from mis_bench.workload import WorkloadNameError


@click.command()
@click.option("--scenario", type=click.Choice(get_args(Scenario)), required=True, help="What to look at.")
@click.option("--model", help="Checkpoint: a directory, a name, or random:SHAPE/DIVISOR.")
@target_options
@click.option(
    "--workload", "workload_name", show_default="the scenario's", help="KIND-Q-N-L; batch-scaling asks fewer items too."
)
@click.option(
    "--requests",
    "timed",
    type=click.IntRange(0),
    show_default="the scenario's",
    help="Requests of each size that are timed, without the profiler.",
)
@click.option(
    "--profiled-requests",
    "profiled",
    type=click.IntRange(1),
    show_default="the scenario's",
    help="Requests of each size under the profiler.",
)
@click.option(
    "--profile-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A server's own --profile-dir, if it can be read here: its trace is copied and read.",
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
    workload_name: str | None,
    timed: int | None,
    profiled: int | None,
    profile_dir: Path | None,
) -> None:
    r"""Profile a scenario: a trace for XProf and Perfetto, and where time or memory went.

    \b
    end-to-end     whole requests, with every Python call in the trace
    single         latency of one item
    batch-scaling  throughput by number of items
    memory         what lies on the devices; no latencies
    kernels        hot spots among the operations
    """
    from mis_bench.environment import cpu_name, hardware_of
    from mis_bench.profile.recording import ProfileError
    from mis_bench.profile.run import Subject
    from mis_bench.profile.run import profile as run
    from mis_bench.profile.scenarios import plan_of
    from mis_bench.profile.tables import tables
    from mis_bench.profile.trace import TraceError

    url = _server(spec, scenario)
    if scenario == "memory" and profiled is not None:
        raise click.BadParameter("memory runs have no trace; leave it out.", param_hint="--profiled-requests")
    try:
        plan = plan_of(scenario, workload_name, timed=timed, profiled=profiled)
    except WorkloadNameError as error:
        raise click.BadParameter(str(error), param_hint="--workload") from None
    directory = checkpoint(model)
    import jax  # takes a second, which help and mistakes need not

    jax.config.update("jax_enable_compilation_cache", False)  # steps from its folder lack the names of operations
    began = datetime.datetime.now(datetime.UTC)
    folder = new_folder(output, identity(began, f"profile-{scenario}"), "profile.json", "traces", "memory")
    with one_sentence(), opened(spec, directory, with_timeout(spec, options, timeout)) as target, progress() as bars:
        bar = bars.add_task(scenario, total=plan.requests)
        subject = Subject(
            TimeLimited(target, timeout),
            vocab_size=vocabulary(directory, vocab_size),
            hardware=hardware_of(hardware, target.about, cpu_name()),
            engine=getattr(target, "engine", None),
            url=url,
            admin_key=options.get("admin_key", options.get("api_key")),
            profile_dir=profile_dir,
        )
        try:
            result = run(plan, subject, folder, on_request=lambda: bars.advance(bar))
        except (ProfileError, TraceError) as error:
            raise click.ClickException(str(error)) from None
        result.write(folder / "profile.json")
        (folder / "metadata.json").write_text(result.metadata.model_dump_json(indent=1) + "\n", encoding="utf-8")
    click.echo(caption(result.target, result.environment.hardware))
    for table in tables(result):
        show(table)
    if url is not None and profile_dir is None and result.trace is not None:
        click.echo(f"The trace is on the server's machine, in {result.trace.server_folder} below its --profile-dir.")
    click.echo(f"Written: {folder}", err=True)


def _server(spec: str, scenario: Scenario) -> str | None:
    """Return the URL of a server that is to be profiled, or None for the engine."""
    kind, _, url = spec.partition("=")
    if spec != "engine" and (kind != "mis" or not url):
        raise click.BadParameter(
            f"{spec[:80]!r} cannot be profiled; write engine or mis=http://HOST:PORT.", param_hint="--target"
        )
    if url and scenario == "memory":
        message = "memory needs the target engine: servers do not tell what lies on their devices."
        raise click.BadParameter(message, param_hint="--scenario")
    return url or None
