"""Fitting calibrations of a model to labelled rows: `mis-server calibrate`."""

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from mis_core.calibration import Calibrations, Entry
from mis_core.calibration.calibrations import common_beginning
from mis_core.calibration.fit import CannotFit, fit_entry
from mis_core.calibration.loading import identity_of
from mis_core.config import NO_CALIBRATION, EngineConfig
from mis_core.errors import ConfigError
from mis_core.labelled import Labelled, groups_of
from mis_server.model import running_model, some_at_a_time
from mis_server.offline.examples import Collected, Collector, RowOptions, requests

_SHOWN = 5  # refusals in an error


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was fitted.

    Attributes:
        calibrations: What a file holds.
        titles: What each of its entries is, for people.
        refused: What could not be fitted, each a sentence.
    """

    calibrations: Calibrations
    titles: tuple[str, ...]
    refused: tuple[str, ...]


async def calibrate(
    config: EngineConfig,
    labelled: Labelled,
    options: RowOptions,
    *,
    act: float,
    review: float,
    progress: Callable[[int], object] = lambda rows: None,
) -> Fitted:
    """Ask a model about labelled rows, and fit a calibration to each kind of distribution over labels.

    Args:
        config: The engine's options.
        labelled: The rows.
        options: How they are asked.
        act: As of `fit_entry`, and so is `review`.
        review: How often answers are to be right to be shown to a person.
        progress: Called with a number of rows when these are done.

    Raises:
        ConfigError: a row cannot be asked, or nothing can be fitted.
        ModelError: the model cannot be served as it stands.
        EngineUnavailable: the engine could not start, or ended.
    """
    raw = dataclasses.replace(config, calibration=NO_CALIBRATION)
    async with running_model(raw, identified=True) as model:
        info = await model.wait_ready()
        collector = Collector(model, options)

        async def ask(part: list) -> None:
            await collector.ask(part)
            progress(len(part))

        await some_at_a_time(ask, requests(labelled.rows))
        dtype, tokenizer = str(info.summary["dtype"]), model.tokenizers.tokenizer.digest
        identity = await asyncio.to_thread(identity_of, model.config, info.parts, dtype, tokenizer)
    groups = groups_of(labelled.rows)
    weights = np.array([row.weight for row in labelled.rows])
    entries: list[tuple[str, Entry]] = []
    refused = []
    for collected in sorted(collector.found.values(), key=lambda each: min(each.rows)):
        try:
            entries.append((collected.title, await asyncio.to_thread(_fit, collected, weights, groups, act, review)))
        except CannotFit as error:
            refused.append(f"{collected.title} ({', '.join(collected.names)}): {error}")
    if not entries:
        raise ConfigError(f"Nothing can be fitted. {' '.join(refused[:_SHOWN])}", "data")
    titles = tuple(title for title, _ in entries)
    return Fitted(Calibrations(identity, tuple(entry for _, entry in entries)), titles, tuple(refused))


def _fit(collected: Collected, weights: np.ndarray, groups: np.ndarray, act: float, review: float) -> Entry:
    begins = common_beginning(list(collected.queries.values()))
    entry = fit_entry(
        collected.identity,
        collected.examples(weights, groups),
        begins=begins,
        labels=collected.names,
        act=act,
        review=review,
    )
    if begins or not collected.queries:
        return entry
    note = "Queries of the rows begin differently: it is applied to every query with these labels."
    return msgspec.structs.replace(entry, notes=(*entry.notes, note))
