"""`mis-bench estimate`."""

from typing import Any

import click

from mis_bench.workload import CANONICAL


@click.command()
@click.option("--topology", default="v6e:1x1", help="v5e:1x1, v6e:1x1, v6e:2x2, v6e:2x4 or v7x:1x1x1.")
@click.option("--model-shape", "model", default="qwen3-0.6b", help="A published model's name, such as qwen3-8b.")
@click.option("--workload", default=CANONICAL, help="KIND-Q-N-L, as for the command workload.")
@click.option("--dp", type=click.IntRange(1), default=1, help="Devices that tokens are cut over.")
@click.option("--tp", type=click.IntRange(1), default=1, help="Devices that weights are cut over.")
@click.option("--step-tokens", type=click.IntRange(256), default=4096, help="Token budget of a step on each device.")
@click.option("--quantization", type=click.Choice(["none", "int8"]), default="none", help="Of the layers' products.")
@click.option("--requests", type=click.IntRange(1), default=8, help="Requests that arrive together.")
@click.option("--apply-softmax", is_flag=True, help="Softmax over the labels, not full-vocabulary probabilities.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def estimate(as_json: bool, **asked: Any) -> None:
    """Estimate the speed of a workload on a TPU, without one: compile the real steps and price them.

    Needs `pip install libtpu`, the TPU's compiler. Takes a minute or two.
    """
    # Imported late: the rest of the command line must not wait for JAX.
    from mis_bench.estimate.pricing import EstimateError, EstimateRequest
    from mis_bench.estimate.pricing import estimate as run

    try:
        found = run(EstimateRequest(**asked))
    except EstimateError as error:
        raise click.ClickException(str(error)) from None
    click.echo(found.model_dump_json() if as_json else found)
