"""`mis-server calibrate`: probabilities that labelled rows bear out."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mis_core.config import EngineConfig
from mis_server import __version__
from mis_server.cli.command import Command
from mis_server.cli.options import declared, options_of, read, read_engine
from mis_server.telemetry.logs import log_to_stderr

if TYPE_CHECKING:
    from mis_core.calibration import Entry, Threshold

_SHARE = click.FloatRange(0, 1, min_open=True)
_REFUSALS = 10  # shown


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """The options of the command without those of the engine, in the order of `--help`."""

    output: str = declared("mis-calibration.json", "File of the calibration.", metavar="FILE")
    labels: tuple[str, ...] = declared(
        (), "Label texts for rows without `labels`, such as ' yes' ' no'. Default: none."
    )
    item_first: bool = declared(False, "Put each item before the query.", show_default=False)
    instruction: str | None = declared(
        None, "Instruction for judging documents. Default: the one in the model's rerank recipe.", metavar="TEXT"
    )
    relevant_from: float = declared(1.0, "Lowest relevance at which a document counts as relevant.")
    act: float = declared(0.95, "Share of the answers above the threshold `act` that must be right.", type=_SHARE)
    review: float = declared(0.8, "Share of the answers above the threshold `review` that must be right.", type=_SHARE)


def _calibrate(**given: Any) -> None:
    """Fit a calibration of MODEL to labelled rows.

    DATA is a JSONL or Parquet file of the rows. A row is {"query", "item", "labels", "label"}, {"query", "documents",
    "relevance"}, {"state", "questions", "answers"} or {"input", "label"}. Serve the calibration with `mis-server serve
    MODEL --calibration FILE`, or put the file next to the model.
    """
    engine, options = read_engine(given), read(CalibrateOptions, given)
    if not given["data"]:
        raise click.UsageError("DATA is missing: a JSONL or Parquet file of labelled rows.")
    log_to_stderr("human", "warning")
    from tqdm import tqdm

    from mis_core.labelled import read_labelled
    from mis_server.offline.calibrating import calibrate
    from mis_server.offline.examples import RowOptions

    labelled = read_labelled(Path(given["data"]), options.labels)
    asked = read(RowOptions, given)
    with tqdm(total=len(labelled.rows), unit="row", disable=None) as bar:
        fitted = asyncio.run(
            calibrate(engine, labelled, asked, act=options.act, review=options.review, progress=bar.update)
        )
    fitted.calibrations.write(Path(options.output), f"mis-server {__version__}")
    for title, entry in zip(fitted.titles, fitted.calibrations.entries, strict=True):
        click.echo("\n".join(_described(title, entry)))
    for refusal in fitted.refused[:_REFUSALS]:
        click.echo(refusal)
    if len(fitted.refused) > _REFUSALS:
        click.echo(f"{len(fitted.refused) - _REFUSALS} others could not be fitted either.")
    click.echo(f"Calibration written to {options.output}.")


def _described(title: str, entry: "Entry") -> Iterator[str]:
    yield f"{title} ({', '.join(entry.labels)}), {entry.rows} rows:"
    if entry.scaling is not None:
        bias = ", ".join(f"{each:+.3f}" for each in entry.scaling.bias)
        yield f"  temperature {entry.scaling.temperature:.3f}" + (f", bias {bias}" if bias else "")
    if entry.curves:
        yield f"  isotonic, {sum(len(curve.before) for curve in entry.curves)} points"
    for name in entry.raw.__struct_fields__:
        raw, calibrated = getattr(entry.raw, name), getattr(entry.calibrated, name)
        yield f"  {name.replace('_', ' ')} on held-out rows: {raw:.4f}, calibrated {calibrated:.4f}"
    yield f"  act: {_shown(entry.act)}"
    yield f"  review: {_shown(entry.review)}"
    yield from (f"  {note}" for note in entry.notes)


def _shown(threshold: "Threshold") -> str:
    if threshold.confidence is None:
        return f"none; at no threshold are {threshold.accuracy:.0%} of the rows above it right"
    return (
        f"{threshold.confidence:.4f}, which {threshold.coverage:.0%} of the rows reach; {threshold.observed:.1%} of "
        f"these rows are right (95 % interval: at least {threshold.at_least:.1%})"
    )


CALIBRATE = Command(
    "calibrate",
    _calibrate,
    [click.Argument(["data"], required=False), *options_of(CalibrateOptions), *options_of(EngineConfig)],
)
"""The command."""
