"""`mis-bench`: the command line."""

import click

from mis_bench import __version__
from mis_bench.commands.compare import compare
from mis_bench.commands.estimate import estimate
from mis_bench.commands.matrix import matrix
from mis_bench.commands.perf import perf
from mis_bench.commands.profile import profile
from mis_bench.commands.report import report
from mis_bench.commands.run import run
from mis_bench.commands.stress import stress
from mis_bench.commands.sweep import sweep
from mis_bench.commands.validate import validate
from mis_bench.commands.validate_artifacts import validate_artifacts
from mis_bench.commands.workload import workload


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
main.add_command(sweep)
main.add_command(validate_artifacts)
main.add_command(workload)
main.add_command(compare)
main.add_command(report)
main.add_command(estimate)
