"""The profile `shapes` of `mis-bench run`: requests of the sizes that others publish figures for, each on its model."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mis_bench.presets.arithmetic import least_flops_of
from mis_bench.presets.bench import Bench, BenchOptions
from mis_bench.results.plan import Case, Gates, LoadLevel
from mis_bench.workload import CANONICAL

if TYPE_CHECKING:
    from mis_bench.results.summary import Measured

PROFILE = "shapes"

RUNS, WARMUP_RUNS = 3, 1
"""Defaults: a request of the largest shapes takes a minute on two cores, and others take longer than our engine."""

MODEL, PRUNED = "random:qwen3-0.6b", "random:qwen3-0.6b-16-layers"


class Shape(NamedTuple):
    """Sizes of a request, and the model that it is asked of unless the user names one."""

    workload: str
    model: str = MODEL


SHAPES = (
    Shape(CANONICAL),
    Shape("candidates-200-16-30"),  # as LMSYS reports
    Shape("posts-100-50-400", PRUNED),  # as LinkedIn reports, of a smaller model that lost as many of its layers
    Shape("items-300-10-20"),  # as SGLang reports
    Shape("titles-60-1000-30"),
    Shape("questions-3000-50-20"),
)


def measure_shapes(
    options: BenchOptions, *, runs: int | None, warmups: int | None, rounds: int | None, gates: Gates
) -> "Measured":
    """Measure every shape, with the models of all of them unless the user named some.

    The first of several targets of a model is the reference for scores and speed.

    Args:
        options: Whom to measure.
        runs: Timed requests of a row; None: `RUNS`.
        warmups: Requests before them; None: `WARMUP_RUNS`.
        rounds: Into which the timed ones are divided; None: each is one.
        gates: Limits of all rows.
    """
    models = options.models or tuple(dict.fromkeys(shape.model for shape in SHAPES))
    bench = replace(options, models=models).find()
    runs = runs or RUNS
    load = LoadLevel(requests=-(-runs // (rounds or runs)))
    cases = list(_cases(bench, load, warmups or WARMUP_RUNS, has_own_models=not options.models))
    reference = bench.planned[0].name if len(options.targets) > 1 else None
    return bench.measure("run", cases, rounds=rounds or runs, title=PROFILE, gates=gates, reference=reference)


def _cases(bench: Bench, load: LoadLevel, warmups: int, *, has_own_models: bool) -> Iterator[Case]:
    """Yield a cold case for every shape and target, without the targets that have another shape's model."""
    for shape in SHAPES:
        asked = [target for target in bench.planned if not has_own_models or target.model == shape.model]
        for target in asked:
            yield Case(
                name=shape.workload if len(asked) == 1 else f"{shape.workload}-{target.name}",
                target=target.name,
                workload=bench.part(shape.workload),
                load=load,
                warmups=warmups,
                flops=least_flops_of(shape.workload, target.model),
            )
