"""A mission: sweep every configuration, confirm the winner and its neighbours, and keep each result at once."""

import datetime
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from mis_bench.artifacts.matrix import (
    MatrixChunk,
    MatrixPlan,
    MatrixSummary,
    Phase,
    RunMetadata,
    ScoreMatrix,
    ineligible,
    reference_of,
    winner,
)
from mis_bench.artifacts.matrix_row import Configuration, MatrixRow
from mis_bench.environment import environment, hardware_of
from mis_bench.matrix.folder import MATRIX, file_of, same_target, stored
from mis_bench.matrix.measuring import measure_configuration, pieces
from mis_bench.targets.base import About, BlockingTarget, TargetUnavailable, check_forgets
from mis_bench.workload import Workload

logger = logging.getLogger("mis_bench.matrix")

Open = Callable[[dict[str, str]], AbstractContextManager[BlockingTarget]]
"""Opens the target with options; raises `TargetUnavailable`."""


@dataclass(frozen=True, slots=True)
class Mission:
    """What a mission works with.

    Attributes:
        folder: Of its artifacts.
        metadata: Its plan.
        workload: The whole request.
        options: Of the target, as the user gave them; the plan has them without secrets.
        open: Opens the target with the options of a layout.
        hardware: What computes, by the user's word.
        on_plan: Told how many runs are to come.
        on_run: Told how many of them are done, or will not come.
    """

    folder: Path
    metadata: RunMetadata
    workload: Workload
    options: dict[str, str]
    open: Open
    hardware: str | None
    on_plan: Callable[[int], None] = lambda _: None
    on_run: Callable[[int], None] = lambda _: None

    @property
    def plan(self) -> MatrixPlan:
        """What is measured."""
        return self.metadata.plan


def run_mission(mission: Mission) -> ScoreMatrix:
    """Measure what is missing, and write the matrix.

    Raises:
        MissionError: the folder holds results of another mission, or the target changed since it began.
        TargetUnavailable: the target cannot run in any configuration.
        OSError: a file cannot be written.
    """
    swept = _measure(mission, "sweep", mission.plan.configurations)
    abouts = [chunk.target for chunk in swept if chunk.target is not None]
    if not abouts:
        for configuration in mission.plan.configurations:
            file_of(mission.folder, "sweep", configuration).unlink()  # nothing was measured: let it be tried again
        raise TargetUnavailable(swept[0].row.reason or "The target cannot run.")
    results = [chunk.row for chunk in swept]
    chosen = to_confirm(results)
    for configuration in mission.plan.configurations:
        if configuration not in chosen:  # an earlier sitting, with fewer results, may have confirmed it
            file_of(mission.folder, "confirm", configuration).unlink(missing_ok=True)
    confirmed = _measure(mission, "confirm", chosen)
    chunks = [*swept, *confirmed]
    began = mission.metadata.environment
    matrix = ScoreMatrix(
        environment=began.model_copy(update={"hardware": hardware_of(mission.hardware, abouts[0], began.hardware)}),
        run_id=mission.metadata.run_id,
        finished=datetime.datetime.now(datetime.UTC),
        target=abouts[0],
        evaluation_view=mission.plan.evaluation_view,
        workload=mission.plan.workload,
        total_runtime_seconds=sum((chunk.finished - chunk.environment.timestamp).total_seconds() for chunk in chunks),
        results=results,
        confirm_results=[chunk.row for chunk in confirmed],
        summary=MatrixSummary.of(results, [chunk.row for chunk in confirmed]),
        notes=_notes(chunks, mission.plan.cache),
    )
    matrix.write(mission.folder / MATRIX)
    logger.info("finished: %s", matrix.summary.model_dump_json())
    return matrix


def to_confirm(results: Sequence[MatrixRow]) -> list[Configuration]:
    """Return what a sweep's winner is confirmed among: the smallest chunks, itself, and its neighbours in size.

    Only rows that may win themselves are of use.
    """
    truth = reference_of(results)
    best = winner(results, truth)
    if best is None:
        return []
    layout, why = _layout(best.configuration), ineligible(results, truth)
    eligible = [row.configuration for row in results if row.configuration.name not in why]
    alike = sorted((each for each in eligible if _layout(each) == layout), key=lambda each: each.chunk_size)
    place = alike.index(best.configuration)
    return [alike[index] for index in sorted({0, max(0, place - 1), place, min(place + 1, len(alike) - 1)})]


def _layout(configuration: Configuration) -> tuple[str, str]:
    return configuration.scoring_algorithm, configuration.mask_impl


def _measure(mission: Mission, phase: Phase, configurations: Sequence[Configuration]) -> list[MatrixChunk]:
    found = {each.name: stored(mission.folder, mission.metadata, phase, each) for each in configurations}
    earlier = next((chunk.target for chunk in found.values() if chunk and chunk.target), None)
    missing = [each for each in configurations if found[each.name] is None]
    runs = mission.plan.warmup_runs + (mission.plan.sweep_runs if phase == "sweep" else mission.plan.confirm_runs)
    mission.on_plan(runs * len(missing))
    for options, group in groupby(missing, lambda each: mission.options | swept_options(mission.plan, each)):
        with ExitStack() as stack:
            target, reason = _opened(mission, stack, options)
            if target is not None and mission.plan.cache == "cold":
                _check_cold(target)
            if target is not None and earlier is not None:
                same_target(earlier, target.about)
            for configuration in group:
                chunk = _chunk(mission, phase, configuration, target, reason)
                chunk.write(file_of(mission.folder, phase, configuration))
                logger.info("%s %s: %s %s", phase, configuration.name, chunk.row.status, chunk.row.reason or "")
                mission.on_run(runs - len(chunk.row.run_records))  # those that a failure made needless
                found[configuration.name] = chunk
    return [chunk for chunk in found.values() if chunk is not None]


def swept_options(plan: MatrixPlan, configuration: Configuration) -> dict[str, str]:
    """Return the options of the target that a configuration decides."""
    names = ("scoring_algorithm", "mask_impl")
    options = {name: value for name in names if (value := getattr(configuration, name)) != "auto"}
    if plan.evaluation_view == "best_native" and configuration.chunk_size:
        options["multi_item_scoring_chunk_size"] = str(configuration.chunk_size)
    return options


def _opened(mission: Mission, stack: ExitStack, options: dict[str, str]) -> tuple[BlockingTarget | None, str]:
    try:
        return stack.enter_context(mission.open(options)), ""
    except TargetUnavailable as error:
        return None, f"unavailable: {error}"


def _check_cold(target: BlockingTarget) -> None:
    try:
        check_forgets(target)
    except TargetUnavailable as error:
        raise TargetUnavailable(f"{error} Take --cache warm.") from None


def _chunk(
    mission: Mission, phase: Phase, configuration: Configuration, target: BlockingTarget | None, reason: str
) -> MatrixChunk:
    here, plan = environment(mission.hardware), mission.plan
    about: About | None = None
    if target is None:
        calls = len(pieces(mission.workload, plan, configuration))
        row = MatrixRow.of(
            configuration, [], num_items=mission.workload.num_items, num_chunks=calls, reason=reason[:300]
        )
    else:
        about = target.about
        runs = plan.sweep_runs if phase == "sweep" else plan.confirm_runs
        row = measure_configuration(
            target, mission.workload, plan, configuration, timed_runs=runs, on_run=lambda: mission.on_run(1)
        )
    return MatrixChunk(
        environment=here,
        run_id=mission.metadata.run_id,
        phase=phase,
        finished=datetime.datetime.now(datetime.UTC),
        target=about,
        evaluation_view=plan.evaluation_view,
        workload=plan.workload,
        row=row,
    )


def _notes(chunks: Sequence[MatrixChunk], cache: str) -> list[str]:
    named = [(f"{chunk.phase} {chunk.row.configuration.name}", chunk.row) for chunk in chunks]
    notes = []
    split = [f"{name} {row.steps_per_call:.1f}" for name, row in named if (row.steps_per_call or 0) > 1]
    if split:
        notes.append(f"The server took more than one step for a call: {', '.join(split)}.")
    compiled = [name for name, row in named if row.timed_compilations]
    if compiled:
        notes.append(f"Something was compiled in timed runs of {', '.join(compiled)}; these rows may not win.")
    kept = [
        (name, max(record.cached_tokens or 0 for record in row.run_records)) for name, row in named if row.run_records
    ]
    warm = [f"{name} {tokens}" for name, tokens in kept if tokens]
    if warm and cache == "cold":
        notes.append(
            f"The cache was not cold: query tokens were kept though the target was told to forget: {', '.join(warm)}."
        )
    return notes
