"""`mis-bench estimate`."""

from typing import Any

import click

from mis_bench.estimate.serving import EstimateRequest
from mis_bench.options import options_of


@click.command()
@options_of(EstimateRequest, model="model-shape")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def estimate(as_json: bool, **asked: Any) -> None:
    """Estimate the speed of a workload on a TPU.

    The command compiles the real steps and estimates their time, without a TPU. It needs `pip install libtpu`, the
    TPU's compiler, and takes a minute or two.
    """
    # Imported late: the rest of the command line must not wait for JAX.
    from mis_bench.estimate.pricing import EstimateError
    from mis_bench.estimate.pricing import estimate as run

    try:
        found = run(EstimateRequest(**asked))
    except EstimateError as error:
        raise click.ClickException(str(error)) from None
    click.echo(found.model_dump_json() if as_json else found)
