"""Targets made here, measured in turn, and closed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from mis_bench.artifacts.comparison import ComparedTarget
from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.comparison.assemble import Evidence
from mis_bench.comparison.in_turn import measure_in_turn
from mis_bench.environment import hardware_of
from mis_bench.targets.base import Target, TargetUnavailable
from mis_bench.targets.registry import make_target
from mis_bench.workload import Workload


def measured(
    specs: Sequence[str],
    workload: Workload,
    part: WorkloadPart,
    model: Path | None,
    *,
    rounds: int,
    chunk_sizes: Sequence[int],
    slow_items: Mapping[str, int],
    hourly_cost_usd: Mapping[str, float],
    hardware: str,
    on_start: Callable[[str], None],
    on_request: Callable[[int, int, str], None],
) -> Evidence:
    """Make the targets, measure them in turn, close them.

    Args:
        specs: Targets as `make_target` takes them, each with options behind commas:
            `engine,scoring_algorithm=packed`. The spelling is the target's name.
        workload: What is asked.
        part: The same, as artifacts describe it.
        model: Checkpoint of targets that load one.
        rounds: Timed rounds.
        chunk_sizes: As in `measure_in_turn`.
        slow_items: Likewise.
        hourly_cost_usd: By target.
        hardware: What targets of this machine compute on, unless they name accelerators.
        on_start: Told of every target before it is made.
        on_request: As in `measure_in_turn`.
    """
    with ExitStack() as stack:
        targets: dict[str, Target] = {}
        about: list[ComparedTarget] = []
        for name in specs:
            on_start(name)
            try:
                targets[name] = _make(name, model)
            except TargetUnavailable as reason:
                about.append(ComparedTarget(name=name, unavailable=str(reason)))
                continue
            stack.callback(targets[name].close)
            about.append(_described(name, targets[name], hardware, hourly_cost_usd.get(name)))
        found = measure_in_turn(
            targets, workload, rounds=rounds, chunk_sizes=chunk_sizes, slow_items=slow_items, on_request=on_request
        )
    return Evidence(
        workload=part,
        targets=about,
        portable=found.series,
        answers=found.answers,
        measured_together=True,
        requests=found.requests,
        notes=[f"{name} was asked for {items} of {part.num_items} items only." for name, items in slow_items.items()],
    )


def _make(name: str, model: Path | None) -> Target:
    spec, *options = name.split(",")
    unlike = next((each for each in options if "=" not in each), None)
    if unlike is not None:
        raise TargetUnavailable(f"{unlike!r} is no option; write KEY=VALUE.")
    return make_target(spec, model=model, options=dict(each.split("=", 1) for each in options))


def _described(name: str, target: Target, hardware: str, hourly_cost_usd: float | None) -> ComparedTarget:
    about = target.about
    return ComparedTarget(
        name=name,
        backend=about.backend,
        hardware=hardware_of(None, about, None if "://" in name else hardware),
        model=about.model,
        model_sha256=about.model_sha256,
        dtype=about.dtype,
        options=about.options,
        versions=about.versions,
        hourly_cost_usd=hourly_cost_usd,
    )
