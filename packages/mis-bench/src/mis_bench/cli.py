"""`mis-bench`: the command line."""

from typing import Any

import click

from mis_bench import __version__
from mis_bench.commands.compare import compare
from mis_bench.commands.matrix import matrix
from mis_bench.commands.perf import perf
from mis_bench.commands.profile import profile
from mis_bench.commands.report import report
from mis_bench.commands.run import run
from mis_bench.commands.stress import stress
from mis_bench.commands.validate import validate
from mis_bench.commands.validate_artifacts import validate_artifacts
from mis_bench.commands.workload import workload
from mis_bench.workload import CANONICAL, WorkloadNameError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="mis-bench")
def main() -> None:
    """Workloads and measurements for multi-item scoring."""


main.add_command(perf)
main.add_command(validate)
main.add_command(profile)
main.add_command(matrix)
main.add_command(run)
main.add_command(stress)
main.add_command(validate_artifacts)
main.add_command(workload)
main.add_command(compare)
main.add_command(report)


@main.command()
@click.option("--topology", default="v6e:1x1", help="v5e:1x1, v6e:1x1, v6e:2x2, v6e:2x4 or v7x:1x1x1.")
@click.option("--model-shape", default="qwen3-0.6b", help="A published model's name, such as qwen3-8b.")
@click.option("--workload", "workload_name", default=CANONICAL, help="KIND-Q-N-L, as for the command workload.")
@click.option("--dp", type=click.IntRange(1), default=1, help="Devices that tokens are cut over.")
@click.option("--tp", type=click.IntRange(1), default=1, help="Devices that weights are cut over.")
@click.option("--step-tokens", type=click.IntRange(256), default=4096, help="Token budget of a step on each device.")
@click.option("--requests", type=click.IntRange(1), default=8, help="Requests that arrive together.")
@click.option("--apply-softmax", is_flag=True, help="Softmax over the labels, not full-vocabulary probabilities.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def estimate(topology: str, model_shape: str, workload_name: str, as_json: bool, **options: Any) -> None:
    """Estimate the speed of a workload on a TPU, without one: compile the real steps and price them.

    Needs `pip install libtpu`, the TPU's compiler. Takes a minute or two.
    """
    # Imported late: the rest of the command line must not wait for JAX.
    from mis_bench.estimate.run import EstimateError
    from mis_bench.estimate.run import estimate as run
    from mis_bench.estimate.table import as_text

    try:
        found = run(topology, model_shape, workload_name, **options)
    except WorkloadNameError as error:
        raise click.BadParameter(str(error), param_hint="--workload") from None
    except EstimateError as error:
        raise click.ClickException(str(error)) from None
    click.echo(found.model_dump_json() if as_json else as_text(found))
