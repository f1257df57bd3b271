"""`mis-bench evaluate`: how right, and how well calibrated, targets are on labelled data."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mis_bench.evaluate.gates import FigureGate, GateError
from mis_bench.interruption import told
from mis_bench.options import ABOVE_0, progress
from mis_bench.targets.target import TargetUnavailable
from mis_core.errors import ConfigError

if TYPE_CHECKING:
    from mis_bench.evaluate.corrections import Correction

_FILE = click.Path(dir_okay=False, path_type=Path)
_PACKAGES = {"sklearn": "scikit-learn", "ir_measures": "ir-measures"}


class EvaluationError(click.ClickException):
    """There is nothing to evaluate, or no way to; exit status 2."""

    exit_code = 2


class _Command(click.Command):
    """A command whose labels may follow each other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `--labels a b` as `--labels a --labels b`."""
        return super().parse_args(ctx, list(_repeated(args, "--labels")))


@click.command(cls=_Command)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--data", required=True, type=_FILE, help="File of labelled rows: JSONL or Parquet.")
@click.option(
    "--labels",
    multiple=True,
    metavar="TEXT...",
    show_default="those of each row",
    help="Label texts for score rows without `labels`.",
)
@click.option(
    "--model",
    show_default="none",
    help="Checkpoint for the target `engine`: a directory, a name, or `random:SHAPE/DIVISOR`.",
)
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="EXPR",
    show_default="none",
    help="Condition on a figure of every target, such as `accuracy>=0.9` or `ece@SLICE<=0.05`. Repeatable.",
)
@click.option(
    "--wordings",
    type=_FILE,
    show_default="as the data asks",
    help="JSON file of wordings to compare. Every row is asked in each wording.",
)
@click.option(
    "--correction",
    "corrections",
    multiple=True,
    type=click.Choice(["content-free", "permutation"]),
    show_default="none",
    help="Also show answers without a bias. `content-free` removes the bias of answers about an empty state, "
    "`permutation` the bias for positions of options. Repeatable.",
)
@click.option("--json", "json_file", type=_FILE, show_default="none", help="File for all figures.")
@click.option("--report", "report_file", type=_FILE, show_default="none", help="File for an HTML page.")
@click.option("--callers", type=click.IntRange(1), default=8, help="Number of concurrent requests.")
@click.option("--timeout", type=ABOVE_0, default=180.0, help="Seconds that a request may take.")
def evaluate(
    targets: tuple[str, ...],
    data: Path,
    labels: tuple[str, ...],
    model: str | None,
    gates: tuple[str, ...],
    wordings: Path | None,
    corrections: tuple["Correction", ...],
    json_file: Path | None,
    report_file: Path | None,
    callers: int,
    timeout: float,
) -> None:
    """Evaluate targets on labelled data.

    The command reports accuracy, calibration and ranking, with 95 % intervals.

    TARGET is `engine`, `mis=URL`, `vllm=URL`, `openai=URL`, `systemone=URL` or `cohere=URL`. With an alias and options
    it is [ALIAS=]TARGET[,OPTION=VALUE]... Other targets are compared with the first. Keys of servers are read from
    MIS_API_KEY, VLLM_API_KEY, OPENAI_API_KEY, TYPESAFE_API_KEY and CO_API_KEY.

    The exit status is 1 if a gate or a row failed, and 2 if nothing could be evaluated.
    """
    with _one_line_errors():
        from mis_bench.evaluate.run import EvaluationPlan, run

        _check_packages()
        for file in (json_file, report_file):
            if file is not None and not file.parent.is_dir():
                raise EvaluationError(f"{file} cannot be written: there is no folder {file.parent}.")
        parsed = [FigureGate.parse(text) for text in gates]
        plan = EvaluationPlan.of(targets, data, labels, model, parsed, wordings, corrections)
        with progress("evaluate") as show:
            found = asyncio.run(run(plan, callers, timeout, show))
        for table in found.tables():
            table.show()
        if json_file is not None:
            json_file.write_text(json.dumps(found.as_json(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if report_file is not None:
            from mis_bench.evaluate.page import as_page

            report_file.write_text(as_page(found, plan.about), encoding="utf-8")
    for missed in found.missed:
        click.echo(f"Gate missed: {missed}.", err=True)
    for file in filter(None, (json_file, report_file)):
        click.echo(f"Written: {file}", err=True)
    if not found.passed:
        raise SystemExit(1)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Say in one sentence what a user can mend; exit status 2."""
    try:
        yield
    except (TargetUnavailable, GateError) as error:
        raise EvaluationError(str(error)) from None
    except ConfigError as error:
        raise EvaluationError(error.message) from None
    except OSError as error:
        raise EvaluationError(told(error)) from None


def _check_packages() -> None:
    for module, package in _PACKAGES.items():
        if find_spec(module) is None:
            raise EvaluationError(f"There is no package {package} here: pip install 'mis-bench[evaluate]'.")


def _repeated(args: Sequence[str], flag: str) -> Iterator[str]:
    is_flag, given = False, False
    for arg in args:
        if arg.startswith("--"):
            is_flag, given = arg == flag, False
        elif is_flag and given:
            yield flag
        given = not arg.startswith("--")
        yield arg
