"""`mis-bench`: the command line."""

import os
import sys
import threading
from pathlib import Path

import click

from mis_bench import __version__
from mis_bench.artifact import ArtifactError
from mis_bench.capacity.command import plan
from mis_bench.checkpoints import CheckpointError, resolve_checkpoint
from mis_bench.estimate.command import estimate
from mis_bench.evaluate.command import evaluate
from mis_bench.evidence.command import validate_artifacts
from mis_bench.interruption import INTERRUPTED, Interruption, sentences, told
from mis_bench.perf.command import perf
from mis_bench.presets.compare import compare, matrix
from mis_bench.presets.decisions import decisions
from mis_bench.presets.loads import stress, sweep
from mis_bench.presets.run import run
from mis_bench.presets.validate import validate
from mis_bench.profile.command import compare_profiles, profile
from mis_bench.report.command import report
from mis_bench.targets.target import TargetUnavailable
from mis_bench.workload import CANONICAL, WorkloadNameError, build_workload


@click.command()
@click.argument("name", default=CANONICAL)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), show_default="it is printed", help="File to write."
)
def workload(name: str, output: Path | None) -> None:
    """Print a workload as JSON.

    NAME is KIND-Q-N-L: a query of Q tokens and N items of L tokens each. KIND may be any word, and each word gives
    other tokens. Some words mean more. With `ragged` the items differ in length, and with `text` there are words
    instead of tokens. With `rerank`, `decisions`, `systemone` and `loglikelihoods` the request is for that task instead
    of scores.

    NAME may also be a request from production: `track_low`, `track_mean`, `track_high`, `home_low`, `home_mean` or
    `home_high`. If NAME ends in @8, the request has 8 labels, or 8 options with `systemone`. The JSON holds the name, a
    checksum, and the body for POST /v1/score or the route of the other task.
    """
    built = build_workload(name)
    if output is None:
        click.echo(built.to_json())
        return
    output.write_text(built.to_json() + "\n", encoding="utf-8")
    unit = "words" if isinstance(built.query, str) else "tokens"
    click.echo(f"{output}: {built.name}, {built.num_tokens:,} {unit}, sha256 {built.sha256}")


@click.command()
@click.argument("spec")
def checkpoint(spec: str) -> None:
    """Print the folder of a checkpoint.

    A server can be started with that folder.

    SPEC is what other commands take as --model: a directory, a name that the model hub's client resolves,
    `random:SHAPE` or `random:SHAPE/DIVISOR`. The last two are random weights of a published shape, which are written if
    they do not exist yet.
    """
    try:
        click.echo(resolve_checkpoint(spec))
    except CheckpointError as error:
        raise click.BadParameter(str(error), param_hint="SPEC") from None


_COMMANDS = (
    run, stress, matrix, compare, sweep, perf, validate, profile, compare_profiles, report, validate_artifacts,
    workload, checkpoint, estimate, plan, decisions, evaluate,
)  # fmt: skip


class _Group(click.Group):
    """Says in one sentence what a user can mend, and exits with 1; with 2 if it was in the command line.

    Whoever interrupts a command reads where the results are, and finds the signal in its exit status.
    """

    def invoke(self, ctx: click.Context) -> object:
        interruption = Interruption()
        try:
            with interruption.watched():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            click.echo(sentences("\nInterrupted.", error), err=True)
            ctx.exit(interruption.status)
        except TargetUnavailable as error:
            raise click.ClickException(sentences(str(error), error)) from None
        except (WorkloadNameError, ArtifactError) as error:
            raise click.BadParameter(sentences(str(error), error)) from None
        except OSError as error:
            raise click.ClickException(sentences(told(error), error)) from None


def run() -> None:
    """Run the program. One that was interrupted ends at once, whatever its threads still compute."""
    try:
        main()
    except SystemExit as end:
        if end.code in INTERRUPTED and any(not each.daemon for each in threading.enumerate()[1:]):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise


@click.group(
    cls=_Group,
    commands=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 120},
)
@click.version_option(__version__, prog_name="mis-bench")
def main() -> None:
    """Workloads and measurements for multi-item scoring."""
