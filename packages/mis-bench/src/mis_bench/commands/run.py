"""`mis-bench run`: the sizes of a profile, named workloads, or a trace."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mis_bench.commands.bench import ABOVE_0, Given, find_targets, measuring_options
from mis_bench.commands.carry_out import carry_out, finish
from mis_bench.commands.measuring import one_sentence
from mis_bench.presets import Counts, run_cases, trace_case
from mis_bench.profiles import PROFILES, parameter_count
from mis_bench.workload import WorkloadNameError
from mis_bench.workloads.traces import Trace, TraceError, build_trace

if TYPE_CHECKING:
    from mis_bench.summary import Summary


def gate_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that set limits; their names are the fields of `records.Gates`."""
    for option in (
        click.option("--min-items-per-second", type=ABOVE_0, show_default="off", help="Fail a row that is slower."),
        click.option(
            "--max-p99-over-p50", type=click.FloatRange(1), show_default="off",
            help="Fail a row whose 99th percentile is so many times its median.",
        ),
        click.option(
            "--max-p99-ms", type=ABOVE_0, show_default="off", help="Fail a row with a higher 99th percentile."
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.option(
    "--profile",
    "profile_name",
    type=click.Choice(list(PROFILES)),
    show_default="standard, or none with --workload",
    help="Sizes of requests, labels, and how often each is asked.",
)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    help="Add a workload by name, with a cold and with a warm cache; repeatable.",
)
@click.option(
    "--trace",
    "trace_name",
    metavar="NAME|FILE",
    show_default="none",
    help="Measure a load instead: LOAD:RATE:COUNT[:SEED] as for the command workload, mixed:4:100 for instance, or a "
    "recorded one.",
)
@click.option("--runs", type=click.IntRange(1), show_default="the profile's", help="Timed requests of a row.")
@click.option(
    "--warmup-runs", type=click.IntRange(1), show_default="the profile's", help="Requests before them, at least."
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    show_default="at most 10, 1 of an open load",
    help="Windows that the runs are cut into; six or more give an interval.",
)
@click.option(
    "--concurrency",
    "--max-concurrency",
    "concurrency",
    type=click.IntRange(1),
    show_default="1, no limit with --rate",
    help="Callers, each waiting for its answer; with --rate most requests under way.",
)
@click.option(
    "--rate",
    type=ABOVE_0,
    show_default="off",
    help="Send requests at random times, this many a second, without waiting for answers.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of those times.")
@gate_options
@click.option(
    "--baseline",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    show_default="none",
    help="Results of an earlier run, to compare with.",
)
@click.option(
    "--regression-threshold",
    type=click.FloatRange(0, 100, min_open=True),
    default=10.0,
    help="Drop of items per second against the baseline that fails, in percent.",
)
@measuring_options
def run(
    given: Given,
    profile_name: str | None,
    workloads: tuple[str, ...],
    trace_name: str | None,
    runs: int | None,
    warmup_runs: int | None,
    rounds: int | None,
    concurrency: int | None,
    rate: float | None,
    seed: int,
    baseline: Path | None,
    regression_threshold: float,
    **gates: float | None,
) -> None:
    """Measure throughput and latency for the sizes of a profile, for named workloads, or for a trace.

    Exit status 1 if a request failed, if a row missed a limit, or for a regression against --baseline.
    """  # fmt: skip
    profile = PROFILES[profile_name or "standard"]
    if trace_name is not None:
        if profile_name or workloads or runs or rounds or rate or seed or baseline:
            raise click.UsageError(
                "--trace says what is asked and when; it goes without --profile, --workload, --runs, --rounds, --rate, "
                "--seed and --baseline."
            )
        finish(_play(given, trace_name, warmup_runs or profile.warmup_runs, concurrency, gates))
        return
    has_profile = profile_name is not None or not workloads
    counts = Counts(
        runs or profile.runs,
        warmup_runs or profile.warmup_runs,
        concurrency if rate or concurrency else 1,
        rate,
        rounds,
    )
    if not rate and (concurrency or 1) > min(counts.runs, counts.warmup_runs):
        raise click.UsageError(f"--concurrency {concurrency} needs at least as many --runs and --warmup-runs.")
    bench = find_targets(given, dtypes=profile.dtypes if has_profile else (None,))
    cases = []
    with one_sentence():
        for target in bench.targets:
            parameters = parameter_count(directory) if (directory := bench.directories[target.name]) else None
            cases += run_cases(
                target,
                profile if has_profile else None,
                workloads,
                counts,
                vocab_size=bench.vocabulary(target),
                parameters=parameters,
                suffix=f"-{target.name}" if len(bench.targets) > 1 else "",
            )
    title = profile.name if has_profile else "workloads"
    summary = carry_out(bench, "run", cases, rounds=counts.turns, title=title, seed=seed, gates=gates).summary
    is_slower = baseline is not None and _is_slower(summary, baseline, regression_threshold / 100)
    finish(summary)
    if is_slower:
        raise SystemExit(1)


def _play(given: Given, name: str, warmup_runs: int, concurrency: int | None, gates: dict[str, Any]) -> "Summary":
    """Play a trace to every target."""
    is_file = Path(name).is_file()
    try:
        trace = Trace.read(Path(name)) if is_file else build_trace(name)
    except TraceError as error:
        raise click.BadParameter(str(error), param_hint="--trace") from None
    except WorkloadNameError as error:
        raise click.BadParameter(f"{error} There is no file of that name either.", param_hint="--trace") from None
    bench = find_targets(given)
    vocab_size = bench.common_vocabulary
    trace = trace if vocab_size is None else trace.within(vocab_size)
    cases = [trace_case(target, trace, warmup_runs, concurrency, is_file) for target in bench.targets]
    return carry_out(bench, "trace", cases, rounds=1, traces={trace.name: trace}, gates=gates).summary


def _is_slower(summary: "Summary", baseline: Path, threshold: float) -> bool:
    """Show rows beside those of an earlier run; return whether one is slower on the same hardware."""
    from mis_bench.artifact import ArtifactError
    from mis_bench.baselines import beside

    try:
        table, is_slower = beside(summary, baseline, threshold)
    except ArtifactError as error:
        raise click.BadParameter(str(error), param_hint="--baseline") from None
    table.show()
    return is_slower
