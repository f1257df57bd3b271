"""`mis-bench plan`."""

from pathlib import Path
from typing import Any

import click

_POSITIVE = click.FloatRange(0, min_open=True)


@click.command()
@click.option("--items-per-day", type=_POSITIVE, required=True, help="Items to score, 1e9 for instance.")
@click.option("--hours", type=click.FloatRange(0, 24, min_open=True), default=24, help="Hours of a day to do it in.")
@click.option("--query", type=click.IntRange(1), default=2000, help="Tokens of a query.")
@click.option("--items", type=click.IntRange(1), default=500, help="Items of a request.")
@click.option("--item-tokens", type=click.IntRange(1), default=20, help="Tokens of an item.")
@click.option("--topology", default="v6e:1x1", help="Of a replica: v5e:1x1, v6e:1x1, v6e:2x2, v6e:2x4 or v7x:1x1x1.")
@click.option("--model-shape", "model", default="qwen3-0.6b", help="A published model's name, such as qwen3-8b.")
@click.option("--dp", type=click.IntRange(1), default=1, help="Devices of a replica that tokens are cut over.")
@click.option("--tp", type=click.IntRange(1), default=1, help="Devices of a replica that weights are cut over.")
@click.option("--quantization", type=click.Choice(["none", "int8"]), default="none", help="Of the layers' products.")
@click.option(
    "--estimate",
    "estimate_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with what `mis-bench estimate --json` printed; default: estimate now, a minute or two.",
)
@click.option("--items-per-second", type=_POSITIVE, help="Measured on one replica, with new queries, in its place.")
@click.option("--utilization", type=click.FloatRange(0, 1, min_open=True), default=0.7, help="Of the bottleneck.")
@click.option("--price", type=click.FloatRange(0), help="Of a chip and hour, in any currency; default: no cost.")
@click.option("--network-gbps", type=_POSITIVE, default=10, help="Of a host, 10^9 bits a second.")
@click.option("--storage-mbps", type=_POSITIVE, default=200, help="Of a host, 10^6 bytes a second.")
@click.option("--distinct-queries", type=click.IntRange(0, 10**7), default=0, help="Queries; 0: all requests' differ.")
@click.option("--zipf", type=click.FloatRange(0, 5), default=1.0, help="Exponent of the queries' popularity.")
@click.option("--cache-tokens", type=click.IntRange(64), help="Of a replica's KV cache; default: what memory allows.")
@click.option("--balance-factor", type=click.IntRange(0, 10_000), default=200, help="Of HAProxy, in percent; 0: none.")
@click.option("--weight", type=click.IntRange(1, 256), default=64, help="Of a replica in HAProxy.")
@click.option("--simulated-requests", type=click.IntRange(100, 10**6), default=50_000, help="With distinct queries.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(as_json: bool, estimate_path: Path | None, items_per_second: float | None, **asked: Any) -> None:
    """Plan capacity on paper: chips, hosts, cost, and the bottleneck of a load.

    With --distinct-queries replicas behind HAProxy are simulated: hit rate, latency, and what a lost replica does.
    An estimate needs `pip install libtpu`, the TPU's compiler.
    """
    if 0 < asked["balance_factor"] <= 100:
        raise click.BadParameter("must be above 100, or 0.", param_hint="--balance-factor")
    # Imported late: the rest of the command line must not wait for JAX.
    from mis_bench.capacity.plan import PlanError, PlanRequest
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
