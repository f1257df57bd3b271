"""Gates of `mis-bench run`: the options, and what is said of those that are missed."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mis_bench.artifacts.gates import Miss


def gate_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that set limits; their names are the fields of `Gates`."""
    above_0, none = click.FloatRange(0, min_open=True), "off"
    for option in (
        click.option("--min-items-per-second", type=above_0, show_default=none, help="Fail a row that is slower."),
        click.option(
            "--max-p99-over-p50", type=click.FloatRange(1), show_default=none,
            help="Fail a row whose 99th percentile is so many times its median.",
        ),
        click.option("--max-p99-ms", type=above_0, show_default=none, help="Fail a row with a higher 99th percentile."),
    ):  # fmt: skip
        command = option(command)
    return command


def fail_if_missed(missed: "Sequence[Miss]") -> None:
    """Say which rows missed which gates, and by how much; status 1 if any did."""
    for miss in missed:
        click.echo(f"Gate missed: {miss}.", err=True)
    if missed:
        raise SystemExit(1)
