"""Targets made here, measured in turn, and closed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from mis_bench.artifacts.comparison import ComparedTarget
from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.comparison.assemble import Evidence
from mis_bench.comparison.in_turn import measure_in_turn
from mis_bench.environment import hardware_of
from mis_bench.targets.base import BlockingTarget, TargetUnavailable, check_forgets
from mis_bench.targets.limited import TimeLimited
from mis_bench.targets.options import without_secrets
from mis_bench.targets.registry import make_target
from mis_bench.targets.synchronous import with_timeout
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
    timeout_s: float,
    hourly_cost_usd: Mapping[str, float],
    hardware: str,
    on_start: Callable[[str], None],
    on_request: Callable[[int, int, str], None],
) -> Evidence:
    """Make the targets, measure them in turn, close them.

    Args:
        specs: Targets as `make_target` takes them, each with options behind commas:
            `engine,scoring_algorithm=packed`. The spelling without secrets is the target's name.
        workload: What is asked.
        part: The same, as artifacts describe it.
        model: Checkpoint of targets that load one.
        rounds: Timed rounds.
        chunk_sizes: As in `measure_in_turn`.
        slow_items: Likewise.
        timeout_s: Longest wait for an answer.
        hourly_cost_usd: By target.
        hardware: What targets of this machine compute on, unless they name accelerators.
        on_start: Told of every target before it is made.
        on_request: As in `measure_in_turn`.
    """
    with ExitStack() as stack:
        targets: dict[str, BlockingTarget] = {}
        about: list[ComparedTarget] = []
        for spelling in specs:
            name = without_secrets(spelling)
            on_start(name)
            try:
                targets[name] = stack.enter_context(_opened(spelling, model, timeout_s))
            except TargetUnavailable as reason:
                about.append(ComparedTarget(name=name, unavailable=str(reason)))
                continue
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


@contextmanager
def _opened(spelling: str, model: Path | None, timeout_s: float) -> Iterator[BlockingTarget]:
    """Open a target that can forget; without that its requests would not be cold."""
    spec, *options = spelling.split(",")
    if not all("=" in each for each in options):
        raise TargetUnavailable("An option behind a comma has no value; write KEY=VALUE.")  # it may be part of a key
    given = dict(each.split("=", 1) for each in options)
    with closing(make_target(spec, model=model, options=with_timeout(spec, given, timeout_s))) as target:
        check_forgets(target)
        yield TimeLimited(target, timeout_s)


def _described(name: str, target: BlockingTarget, hardware: str, hourly_cost_usd: float | None) -> ComparedTarget:
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
