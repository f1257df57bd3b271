"""`mis-bench matrix`."""

import re

import click

from mis_bench.commands.bench import Given, find_targets, measuring_options, numbers
from mis_bench.commands.carry_out import carry_out, finish
from mis_bench.commands.measuring import one_sentence
from mis_bench.presets import CHUNK_SIZES, matrix_cases, workload_part
from mis_bench.records import Cache
from mis_bench.targets.spec import without_secrets
from mis_bench.workload import CANONICAL


@click.command()
@click.option("--workload", "workload_name", default=CANONICAL, help="KIND-Q-N-L, or another name of a workload.")
@click.option(
    "--view",
    type=click.Choice(["portable", "best-native"]),
    default="portable",
    help="portable: the client cuts the request into chunks. best-native: the server does, as it likes best.",
)
@click.option(
    "--chunk-sizes",
    callback=numbers(int, "1,32,500"),
    show_default="1,2,4 ... 256,500; best-native 0",
    help="Items of a chunk, separated by commas; 0, in the view best-native, leaves it to the server.",
)
@click.option("--algorithm", "algorithms", multiple=True, default=["auto"], help="scoring_algorithm; repeatable.")
@click.option("--mask", "masks", multiple=True, default=["auto"], help="mask_impl; repeatable.")
@click.option(
    "--cache",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    help="cold: the target forgets the query before every request.",
)
@click.option("--warmup-runs", type=click.IntRange(1), default=1, help="Requests of a configuration that do not count.")
@click.option("--sweep-runs", type=click.IntRange(1), default=5, help="Rounds of every configuration.")
@click.option("--confirm-runs", type=click.IntRange(0), default=7, help="Rounds of those that are confirmed.")
@measuring_options
def matrix(
    given: Given,
    workload_name: str,
    view: str,
    chunk_sizes: tuple[int, ...],
    algorithms: tuple[str, ...],
    masks: tuple[str, ...],
    cache: Cache,
    warmup_runs: int,
    sweep_runs: int,
    confirm_runs: int,
) -> None:
    """Find the chunk size and layout with most items a second, and confirm it.

    The same command resumes an interrupted one. Exit status 1 if no configuration may win.
    """  # fmt: skip
    if len(given.targets) > 1 or len(given.models) > 1:
        raise click.UsageError("A matrix is of one target and one model; `mis-bench compare` puts matrices together.")
    swept = bool(set(algorithms) | set(masks) != {"auto"} or (view == "best-native" and any(chunk_sizes)))
    bench = find_targets(given, must_forget=cache == "cold", layouts=swept)
    (target,) = bench.targets
    with one_sentence():
        part = workload_part(workload_name, bench.vocabulary(target), softmax=True)
    sizes = _checked(chunk_sizes, view, part.num_items, target.options)
    cases = list(
        matrix_cases(
            target,
            part,
            view=view,
            chunk_sizes=sizes,
            algorithms=list(dict.fromkeys(algorithms)),
            masks=list(dict.fromkeys(masks)),
            cache=cache,
            warmups=warmup_runs,
        )
    )
    name = f"matrix-{without_secrets(given.targets[0])}-{part.name}-{view}".lower()
    outcome = carry_out(
        bench,
        "matrix",
        cases,
        rounds=sweep_runs,
        confirm_rounds=confirm_runs,
        reference=target.name,
        folder_name=re.sub(r"[^a-z0-9.@]+", "-", name),
    )
    finish(outcome.summary)


def _checked(sizes: tuple[int, ...], view: str, items: int, options: dict[str, str]) -> tuple[int, ...]:
    own = options.get("multi_item_scoring_chunk_size", "0")
    if own != "0":
        raise click.BadParameter(
            "multi_item_scoring_chunk_size is what a matrix sweeps: leave it out, or take --view best-native "
            f"--chunk-sizes {own}.",
            param_hint="--option",
        )
    if not sizes:
        return (0,) if view == "best-native" else (*(size for size in CHUNK_SIZES if size < items), items)
    if view == "portable" and 0 in sizes:
        raise click.BadParameter("0 is for --view best-native.", param_hint="--chunk-sizes")
    if max(sizes) > items:
        raise click.BadParameter(f"{max(sizes)} is more than the workload's {items} items.", param_hint="--chunk-sizes")
    return sizes
