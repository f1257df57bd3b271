"""`mis-bench run`: the sizes of a profile, named workloads, the loads of many callers, or a trace."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mis_bench.options import ABOVE_0, adding
from mis_bench.presets import shapes
from mis_bench.presets.bench import POSITIVE, Bench, BenchOptions, finish, measuring_options, show
from mis_bench.presets.callers import PROFILE, CallersOptions, callers_options, measure_callers
from mis_bench.results.plan import Cache, Case, Gates, LoadLevel, WorkloadPart
from mis_bench.traces import build_trace

if TYPE_CHECKING:
    from mis_bench.results.summary import Measured

ROUNDS = 10
"""Most rounds that the requests of a row are cut into."""

CACHES: tuple[Cache, ...] = ("cold", "warm")


class RunProfile(NamedTuple):
    """Items and labels of requests, which have a query of 128 tokens and items of 20, and how often they are sent."""

    batch_sizes: tuple[int, ...]
    label_counts: tuple[int, ...]
    runs: int
    warmup_runs: int
    dtypes: tuple[str | None, ...] = (None,)  # of our engine's weights; None: as it likes


PROFILES = {
    "smoke": RunProfile((1, 4, 16), (2, 4), runs=5, warmup_runs=2),
    "standard": RunProfile((1, 2, 4, 8, 16, 32), (2, 4, 8), runs=20, warmup_runs=5),
    "full": RunProfile(
        (1, 2, 4, 8, 16, 32, 64), (2, 4, 8, 16), runs=50, warmup_runs=10, dtypes=("bfloat16", "float32")
    ),
}  # fmt: skip

gate_options = adding(
    click.option(
        "--max-p99-ms", type=ABOVE_0, show_default="off",
        help="Limit of a row's 99th percentile of latency, in ms. A row above it fails.",
    ),
    click.option(
        "--max-p99-over-p50", type=click.FloatRange(1), show_default="off",
        help="Limit of the ratio of a row's 99th percentile of latency to its median. A row above it fails.",
    ),
    click.option(
        "--min-items-per-second", type=ABOVE_0, show_default="off",
        help="Number of items a second that a row must reach. A slower row fails.",
    ),
)  # fmt: skip
"""Adds the options that set limits; their names are the fields of `records.Gates`."""


@click.command()
@click.option(
    "--profile",
    "profile_name",
    type=click.Choice([*PROFILES, PROFILE, shapes.PROFILE]),
    show_default="standard, or none with --workload",
    help="Profile, which says how large requests are and how often each is sent.",
)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    show_default="none",
    help="Add a workload, measured with a cold and with a warm prefix cache. Repeatable.",
)
@click.option(
    "--trace", "trace_name", metavar="LOAD:RATE:COUNT[:SEED]", show_default="none",
    help="Measure a trace instead: COUNT requests, RATE a second. LOAD is a workload or `mixed` (3, 30 and 500 items).",
)  # fmt: skip
@click.option("--runs", type=POSITIVE, show_default="the profile's", help="Number of timed requests of a row.")
@click.option(
    "--warmup-runs",
    type=POSITIVE,
    show_default="the profile's",
    help="Minimum number of requests before the timed ones.",
)
@click.option(
    "--rounds",
    type=POSITIVE,
    show_default="10 at most",
    help="Number of rounds into which the runs are divided. Six or more give an interval.",
)
@click.option(
    "--concurrency",
    "--max-concurrency",
    "concurrency",
    type=POSITIVE,
    show_default="1, or any with --rate",
    help="Maximum requests under way.",
)
@click.option(
    "--rate",
    type=ABOVE_0,
    show_default="off",
    help="Requests a second, sent at random times, whether or not earlier ones were answered.",
)
@callers_options
@gate_options
@click.option(
    "--baseline",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    show_default="none",
    help="Folder of earlier results to compare with.",
)
@click.option(
    "--regression-threshold",
    type=ABOVE_0,
    default=10.0,
    help="Drop of items a second, in percent, that counts as a regression.",
)
@measuring_options
def run(
    profile_name: str | None,
    workloads: tuple[str, ...],
    trace_name: str | None,
    runs: int | None,
    warmup_runs: int | None,
    rounds: int | None,
    concurrency: int | None,
    rate: float | None,
    baseline: Path | None,
    regression_threshold: float,
    **given: Any,
) -> None:
    """Measure throughput and latency.

    The requests come from a profile, from named workloads, or from a trace.

    The profile `callers` has loads of many callers instead. In a closed load each caller waits for its answer before it
    asks again. In an open load requests arrive at a share of the rate that the most callers reached.

    The profile `shapes` has six requests of the sizes that others publish figures for. Without --model it measures them
    with random weights of Qwen3-0.6B's shape, and one of them with 16 of its 28 layers.

    The exit status is 1 if a request failed, a row missed a limit, or a row is a regression against --baseline. It is 2
    if no row can be compared with the baseline.
    """
    gates = Gates.model_validate({name: given.pop(name) for name in Gates.model_fields})
    of_callers = CallersOptions(*(given.pop(name) for name in CallersOptions._fields))
    options, profile = BenchOptions(**given), PROFILES.get(profile_name or "standard", PROFILES["standard"])
    warmups = warmup_runs or profile.warmup_runs
    if profile_name == PROFILE:
        if workloads or trace_name or runs or warmup_runs or concurrency or rate:
            raise click.UsageError("--profile callers takes only --callers, --load, --shares, --seconds and --rounds.")
        found = measure_callers(options.find(), of_callers, rounds=rounds or 1, gates=gates)
        _judge(show(found), baseline, regression_threshold)
        return
    if any(value not in (None, ()) for value in of_callers):
        raise click.UsageError("--callers, --load, --shares and --seconds need --profile callers.")
    if trace_name is not None:
        if profile_name or workloads or runs or rounds or rate or baseline:
            raise click.UsageError("--trace excludes --profile, --workload, --runs, --rounds, --rate and --baseline.")
        finish(show(_play(options, trace_name, warmups, concurrency, gates)))
        return
    if profile_name == shapes.PROFILE:
        if workloads or concurrency or rate:
            raise click.UsageError("--profile shapes excludes --workload, --concurrency and --rate.")
        found = shapes.measure_shapes(options, runs=runs, warmups=warmup_runs, rounds=rounds, gates=gates)
        _judge(show(found), baseline, regression_threshold)
        return
    runs = runs or profile.runs
    if not rate and (concurrency or 1) > min(runs, warmups):
        raise click.UsageError(f"--concurrency {concurrency} needs at least as many --runs and --warmup-runs.")
    rounds = rounds or rounds_of(runs, concurrency, rate)
    most = concurrency if rate else concurrency or 1
    load = LoadLevel(requests=-(-runs // rounds), max_concurrency=most, rate=rate)
    chosen = profile if profile_name or not workloads else None
    bench = options.find(dtypes=chosen.dtypes if chosen else (None,))
    cases = list(_cases(bench, chosen, workloads, load, warmups))
    title = (profile_name or "standard") if chosen else "workloads"
    _judge(show(bench.measure("run", cases, rounds=rounds, title=title, gates=gates)), baseline, regression_threshold)


def _judge(found: "Measured", baseline: Path | None, regression_percent: float) -> None:
    """Print the comparison with a baseline, if there is one.

    Status 1 if anything failed or is slower, 2 if nothing compares.
    """
    from mis_bench.results.baselines import compare_to_baseline

    compared = None
    try:
        if baseline is not None:
            compared = compare_to_baseline(found, baseline, regression_percent / 100)
            compared.table.show()
    finally:
        finish(found)  # a call that failed fails, whatever the baseline is
    if compared is not None and not compared.compares:
        click.echo(f"No row of {baseline} can be compared with this run.", err=True)
        raise SystemExit(2)
    if compared is not None and compared.is_slower:
        raise SystemExit(1)


def rounds_of(runs: int, callers: int | None, rate: float | None) -> int:
    """Return how many windows the requests of a row are cut into, unless the user says.

    Many callers need long ones, or else their beginning and end are most of what is measured.
    """
    callers = callers or 1
    most = 1 if rate else max(1, min(ROUNDS, runs // (callers if callers == 1 else 5 * callers)))
    return -(-runs // -(-runs // most))


def _cases(
    bench: Bench, profile: RunProfile | None, workloads: Sequence[str], load: LoadLevel, warmups: int
) -> Iterator[Case]:
    """Yield a case for every row of a profile, and two for every named workload: with a cold and with a warm cache."""
    for target in bench.planned:
        case = partial(Case, target=target.name, load=load, warmups=warmups)
        for labels, items in product(profile.label_counts, profile.batch_sizes) if profile else ():
            workload = bench.part(f"profile{labels}-128-{items}-20@{labels}")
            yield case(name=bench.named(f"batch-{items}-labels-{labels}", target), workload=workload)
        for name, cache in product(dict.fromkeys(workloads), CACHES):
            yield case(name=bench.named(f"{name}-{cache}", target), workload=bench.part(name), cache=cache)


def _play(options: BenchOptions, name: str, warmups: int, callers: int | None, gates: Gates) -> "Measured":
    """Play a trace to every target."""
    trace = build_trace(name)
    bench = options.find()
    trace = trace.within(bench.vocab_size)
    cases = [
        Case(
            name=target.name,
            target=target.name,
            workload=WorkloadPart.of_trace(trace),
            load=LoadLevel(requests=None, max_concurrency=callers),
            warmups=warmups,
            is_gated=False,
        )
        for target in bench.planned
    ]
    return bench.measure("trace", cases, rounds=1, gates=gates)
