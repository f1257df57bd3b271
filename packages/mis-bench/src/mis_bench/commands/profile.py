"""`mis-bench profile`."""

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from mis_bench.commands.measuring import (
    caption,
    checkpoint,
    identity,
    new_folder,
    one_sentence,
    progress,
    show,
    target_options,
    vocabulary,
)
from mis_bench.profile.records import Profile, Scenario
from mis_bench.workload import WorkloadNameError

if TYPE_CHECKING:
    from mis_bench.profile.scenarios import Plan
    from mis_bench.targets.base import Target
    from mis_core import Engine


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
    from mis_bench.profile.recording import ProfileError
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
    began = datetime.datetime.now(datetime.UTC)
    folder = new_folder(output, identity(began, f"profile-{scenario}"), "profile.json", "traces", "memory")
    with one_sentence(), progress() as bars:
        bar = bars.add_task(scenario, total=plan.requests)
        asked = _Asked(directory, spec, options, vocabulary(directory, vocab_size), timeout, url, profile_dir)
        try:
            result = asyncio.run(asked.profiled(plan, folder, hardware, lambda: bars.advance(bar)))
        except (ProfileError, TraceError) as error:
            raise click.ClickException(str(error)) from None
        result.write(folder / "profile.json")
    click.echo(caption(result.target, result.environment.hardware))
    for table in tables(result):
        show(table)
    if url is not None and profile_dir is None and result.trace is not None:
        click.echo(f"The trace is on the server's machine, in {result.trace.server_folder} below its --profile-dir.")
    click.echo(f"Written: {folder}", err=True)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be profiled."""

    directory: Path | None
    spec: str
    options: dict[str, str]
    vocab_size: int | None
    timeout_s: float
    url: str | None
    profile_dir: Path | None

    async def profiled(
        self, plan: "Plan", folder: Path, hardware: str | None, on_request: Callable[[], None]
    ) -> Profile:
        """Open the target and run the scenario."""
        import jax  # takes a second, which help and mistakes need not

        from mis_bench.environment import cpu_name, environment, hardware_of
        from mis_bench.profile.run import Subject, profile

        jax.config.update("jax_enable_compilation_cache", False)  # steps from its folder lack the names of operations
        target, engine = await self._open()
        try:
            subject = Subject(
                target,
                self.timeout_s,
                vocab_size=self.vocab_size,
                engine=engine,
                url=self.url,
                admin_key=self.options.get("admin_key", self.options.get("api_key")),
                profile_dir=self.profile_dir,
            )
            where = environment(hardware_of(hardware, target.about, cpu_name()))
            return await profile(plan, subject, folder, where, on_request=on_request)
        finally:
            await target.close()

    async def _open(self) -> "tuple[Target, Engine | None]":
        """Return the target and, if it is in this process, its engine."""
        from mis_bench.targets.blocking import Blocking, BlockingOpener
        from mis_bench.targets.registry import opener
        from mis_bench.targets.spec import TargetSpec

        found = opener(TargetSpec(self.spec, self.spec, self.options), model=self.directory)
        if not isinstance(found, BlockingOpener):
            return await found.open(), None
        target = found.make()
        return Blocking(target), getattr(target, "engine", None)


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
