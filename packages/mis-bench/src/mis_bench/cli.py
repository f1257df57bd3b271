"""`mis-bench`: the command line."""

import click

from mis_bench import __version__
from mis_bench.artifact import ArtifactError
from mis_bench.commands.checkpoint import checkpoint
from mis_bench.commands.compare import compare, matrix
from mis_bench.commands.estimate import estimate
from mis_bench.commands.loads import stress, sweep
from mis_bench.commands.perf import perf
from mis_bench.commands.plan import plan
from mis_bench.commands.profile import profile
from mis_bench.commands.report import report
from mis_bench.commands.run import run
from mis_bench.commands.validate import validate
from mis_bench.commands.validate_artifacts import validate_artifacts
from mis_bench.commands.workload import workload
from mis_bench.targets.target import TargetUnavailable
from mis_bench.workload import WorkloadNameError

_COMMANDS = (
    run, stress, matrix, compare, sweep, perf, validate, profile, report, validate_artifacts, workload, checkpoint,
    estimate, plan,
)  # fmt: skip


class _Group(click.Group):
    """Says in one sentence what a user can mend, and exits with 1; with 2 if it was in the command line."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except TargetUnavailable as error:
            raise click.ClickException(str(error)) from None
        except (WorkloadNameError, ArtifactError) as error:
            raise click.BadParameter(str(error)) from None
        except OSError as error:
            raise click.FileError(str(error.filename), error.strerror) from None


@click.group(
    cls=_Group, commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(__version__, prog_name="mis-bench")
def main() -> None:
    """Workloads and measurements for multi-item scoring."""
