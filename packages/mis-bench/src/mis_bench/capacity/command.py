"""`mis-bench plan`."""

from pathlib import Path
from typing import Any

import click

from mis_bench.capacity.plan import PlanError, PlanRequest
from mis_bench.options import ABOVE_0, options_of


@click.command()
@options_of(PlanRequest, model="model-shape")
@click.option(
    "--estimate",
    "estimate_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the output of `mis-bench estimate --json`. Default: estimate now, in a minute or two.",
)
@click.option(
    "--items-per-second",
    type=ABOVE_0,
    show_default="estimated",
    help="Measured rate of one replica, with queries that are not cached.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(as_json: bool, estimate_path: Path | None, items_per_second: float | None, **asked: Any) -> None:
    """Plan capacity on paper.

    The plan says how many chips and hosts a load needs, what they cost, and what the bottleneck is.

    With --distinct-queries the command also simulates replicas behind HAProxy, and prints their hit rate, their latency
    and the effect of losing one. To estimate speed it needs `pip install libtpu`, the TPU's compiler.
    """
    if 0 < asked["balance_factor"] <= 100:
        raise click.BadParameter("must be above 100, or 0.", param_hint="--balance-factor")
    # Imported late: the rest of the command line must not wait for JAX.
    from mis_bench.capacity.planning import device_rate
    from mis_bench.capacity.planning import plan as run
    from mis_bench.estimate.pricing import EstimateError

    load = PlanRequest(**asked)
    estimated = None if estimate_path is None else estimate_path.read_text(encoding="utf-8-sig")
    try:
        found = run(load, device_rate(load, estimated, items_per_second))
    except (EstimateError, PlanError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(found.model_dump_json() if as_json else found)
