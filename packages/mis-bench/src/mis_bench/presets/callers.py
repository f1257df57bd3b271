"""The profile `callers` of `mis-bench run`: many callers at once, each with a query and a few items."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import click

from mis_bench.options import ABOVE_0, adding
from mis_bench.presets.arithmetic import least_flops_of
from mis_bench.presets.bench import POSITIVE, Bench, numbers
from mis_bench.results.plan import Cache, Case, Gates, LoadLevel

if TYPE_CHECKING:
    from mis_bench.results.summary import Measured

PROFILE = "callers"

LOADS = {"16x20/200": "callers-200-16-20", "3x30/300": "callers-300-3-30", "1x15/60": "callers-60-1-15"}
"""Workloads by items, tokens of each, and tokens of the query."""

KNOWN = 40
"""Queries that the requests of a known load share."""

CALLERS, SHARES, SECONDS = (1, 8, 32), (0.5, 0.8), 12.0
"""Defaults: 30 loads are six minutes; what is under way at their ends and queries to be known come on top."""

_CACHES: dict[Cache, str] = {"cold": "cold", "warm": "known"}


class CallersOptions(NamedTuple):
    """What the options of `callers_options` say; what was not given is empty or None."""

    callers: tuple[int, ...]
    load_names: tuple[str, ...]
    shares: tuple[float, ...] | None
    seconds: float | None


def _shares(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[float, ...] | None:
    return None if text is None else numbers(ABOVE_0)(context, parameter, text)


callers_options = adding(
    click.option(
        "--callers", callback=numbers(POSITIVE), show_default="1,8,32", metavar="N,...",
        help="Numbers of callers of the closed loads, with `--profile callers`. Comma-separated.",
    ),
    click.option(
        "--load", "load_names", type=click.Choice(list(LOADS)), multiple=True, show_default="all",
        help="Load, with `--profile callers`. 16x20/200 is 16 items of 20 tokens after a query of 200. Repeatable.",
    ),
    click.option(
        "--shares", callback=_shares, show_default="0.5,0.8", metavar="X,...",
        help="Rates of the open loads, with `--profile callers`, as shares of the rate that the most callers reached. "
        "Comma-separated. '' means no open loads.",
    ),
    click.option(
        "--seconds", type=ABOVE_0, show_default="12", help="Seconds of each load, with `--profile callers`."
    ),
)  # fmt: skip
"""Adds the options of the profile; their names are the fields of `CallersOptions`."""


def measure_callers(bench: Bench, options: CallersOptions, *, rounds: int, gates: Gates) -> "Measured":
    """Measure the profile; the first of several targets is the reference for scores and speed."""
    reference = bench.planned[0].name if len(bench.planned) > 1 else None
    cases = list(_cases(bench, options))
    return bench.measure("callers", cases, rounds=rounds, gates=gates, reference=reference)


def _cases(bench: Bench, options: CallersOptions) -> Iterator[Case]:
    """Yield the cases of every target: each load cold and known, of each number of callers, and open.

    In a round the known loads come side by side, so that their queries stay known. Scores are checked once for each.
    """
    callers, seconds = options.callers or CALLERS, options.seconds or SECONDS
    shares = SHARES if options.shares is None else options.shares
    most = max(callers)
    levels = {
        f"{each} caller{'' if each == 1 else 's'}": LoadLevel(requests=None, seconds=seconds, max_concurrency=each)
        for each in callers
    }
    levels |= {
        f"{share:g} of {most} callers": LoadLevel(
            requests=None, seconds=seconds, max_concurrency=None, rate_share=share, rate_callers=most
        )
        for share in shares
    }
    for (cache, known), load, target in product(_CACHES.items(), options.load_names or LOADS, bench.planned):
        flops = least_flops_of(LOADS[load], target.model, is_known=cache == "warm")
        case = partial(Case, target=target.name, workload=bench.part(LOADS[load]), cache=cache, flops=flops)
        for words, level in levels.items():
            is_first = level is next(iter(levels.values()))
            yield case(
                name=bench.named(f"{load} {known}, {words}", target),
                load=level,
                queries=KNOWN if cache == "warm" else 1,
                warmups=int(is_first),
                is_gated=is_first,
            )
