"""Results, documents and estimates with figures of a plausible size, for tests of the report."""

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mis_bench.environment import environment
from mis_bench.estimate.serving import ServingEstimate, Stage
from mis_bench.results.folder import append, begin
from mis_bench.results.plan import Case, LoadLevel, Plan, PlannedTarget, WorkloadPart
from mis_bench.results.records import Call, Gate, Opened, Window
from mis_bench.targets.target import About
from mis_bench.workload import CANONICAL, build_workload

HERE = environment().model_copy(update={"hardware": "Intel Xeon, 2 cores", "is_dirty": False})
SINCE = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
OPTIONS = {"scoring_algorithm": "auto"}


def about(name: str = "engine", model: str = "/models/Qwen3-0.6B") -> About:
    return About(name, "mis-engine", model, dtype="bfloat16", options=dict(OPTIONS), versions={"jax": "1"})


def case(target: str, workload: str, **fields: Any) -> Case:
    part = WorkloadPart.of(build_workload(workload))
    return Case(name=fields.pop("name", f"{target} {workload}"), target=target, workload=part, **fields)


def write_results(
    folder: Path,
    preset: str,
    cases: Mapping[Case, float] | Sequence[tuple[Case, float]],
    *,
    rounds: int = 6,
    missing: Sequence[str] = (),
    extra: Sequence[Any] = (),
    **fields: Any,
) -> Path:
    """Write a folder of results.

    Args:
        folder: To write.
        preset: Of the plan.
        cases: Each with the milliseconds that its requests take, more or less.
        rounds: Of four requests.
        missing: Targets that could not be opened.
        extra: Other records.
        fields: Of the plan.
    """
    made = list(cases.items()) if isinstance(cases, Mapping) else list(cases)
    names = list(dict.fromkeys(each.target for each, _ in made))
    plan = Plan(
        run_id=folder.name,
        preset=preset,  # pyrefly: ignore[bad-argument-type]
        command=f"mis-bench {preset}",
        started=SINCE,
        environment=HERE,
        targets=[PlannedTarget(name=name, spec=name) for name in names],
        cases=[each for each, _ in made],
        rounds=rounds,
        **fields,
    )
    begin(folder, plan)
    drawn = random.Random(f"{folder.name} {preset}")
    for name in names:
        why = "It is published for CUDA only." if name in missing else None
        append(
            folder,
            [Opened(target=name, about=None if why else about(name), unavailable=why)],
        )
    for each, milliseconds in made:
        if each.target in missing:
            continue
        items, tokens = each.workload.num_items, each.workload.num_tokens
        for turn in range(1, rounds + 1):
            took = [milliseconds * drawn.uniform(0.8, 1.4) / 1e3 for _ in range(4)]
            sent = [sum(took[:place]) for place in range(4)]
            calls = [
                Call(
                    case=each.name, phase="timed", round=turn, number=4 * turn + place, sent_s=start,
                    done_s=start + seconds, items=items, tokens=tokens,
                )
                for place, (start, seconds) in enumerate(zip(sent, took, strict=True))
            ]  # fmt: skip
            window = Window(
                case=each.name, phase="timed", round=turn, began=SINCE, seconds=sum(took), calls=4, forgot=True,
                compilations=0,
            )  # fmt: skip
            append(folder, [*calls, window])
    append(folder, extra)
    return folder


def run(folder: Path) -> Path:
    sizes = (1, 2, 4, 8, 16, 32)
    cases = [
        (case("engine", f"profile{labels}-128-{items}-20@{labels}"), 70.0 + 13 * items + labels)
        for labels in (2, 4)
        for items in sizes
    ]
    return write_results(folder, "run", cases)


def sweep(folder: Path) -> Path:
    loads = [(callers, milliseconds) for callers, milliseconds in ((1, 50.0), (2, 60.0), (4, 90.0), (8, 200.0))]
    cases = [
        (
            case(
                target, "probe-128-8-20", name=f"{target} {callers}",
                load=LoadLevel(requests=4, max_concurrency=callers),
            ),
            milliseconds * factor,
        )
        for target, factor in (("engine", 1.0), ("base", 1.5))
        for callers, milliseconds in loads
    ]  # fmt: skip
    return write_results(folder, "sweep", cases, slo_p99_ms=120.0)


def compare(folder: Path, *names: str) -> Path:
    targets = names or ("engine", "transformers-shared", "llama.cpp", "vllm-cpu")
    cases = [(case(name, CANONICAL), 7600.0 * (1 + 5 * place)) for place, name in enumerate(targets)]
    wrong = targets[1]
    gates = [
        Gate(case=f"{name} {CANONICAL}", name="correctness", max_abs=apart, mean_abs=apart / 5)
        for name, apart in ((name, 0.03 if name == wrong else 0.0) for name in targets if name != "vllm-cpu")
    ]
    missing = [name for name in targets if name == "vllm-cpu"]
    return write_results(folder, "compare", cases, missing=missing, extra=gates, reference=targets[2])


def matrix(folder: Path) -> Path:
    cases = [
        (case("engine", "probe-200-50-10", name=f"chunk {size}", chunk_items=size), 90.0 + 400 / size)
        for size in (1, 4, 16, 50)
    ]
    return write_results(folder, "matrix", cases, reference="engine")


def perf(folder: Path) -> Path:
    cases = [
        (case(side, f"batch-128-{items}-20"), milliseconds)
        for items, base, changed in ((1, 60.0, 90.0), (16, 90.0, 88.0))
        for side, milliseconds in (("base", base), ("changed", changed))
    ]
    return write_results(folder, "perf", cases, reference="base")


def stress(folder: Path) -> Path:
    cases = [(case("engine", "load-100-100-20", is_gated=False), 900.0)]
    return write_results(folder, "stress", cases)


def estimate(topology: str = "v6e:1x1", ms: float = 49.5) -> ServingEstimate:
    parts = {"attention": 0.48, "mlp": 0.21, "projections and norms": 0.18, "norm and RoPE": 0.08, "head": 0.05}
    return ServingEstimate(
        topology=topology, model="qwen3-0.6b", workload=CANONICAL, workload_sha256=build_workload().sha256, dp=1,
        tp=1, step_tokens=4096, requests=8, apply_softmax=False, steps=24, milliseconds=ms, items_per_second=5e5 / ms,
        best_items_per_second=5.5e5 / ms, worst_items_per_second=4.5e5 / ms,
        stages=[
            Stage(
                name=name, milliseconds=ms * share, best_milliseconds=ms * share / 1.1,
                worst_milliseconds=ms * share / 0.9, share=share,
            )
            for name, share in parts.items()
        ],
        roofline_items_per_second=29977, roofline_share=16.7 / ms, padded_share=0.02, memory_bytes=3661491200,
        memory_limit_bytes=34.4e9,
    )  # fmt: skip


EVERY_PRESET: Mapping[str, Callable[[Path], Path]] = {
    "run": run, "sweep": sweep, "compare": compare, "matrix": matrix, "perf": perf, "stress": stress,
}  # fmt: skip


def write_everything(folder: Path) -> None:
    """Write results of every preset, a validation, a profile, two estimates, and a file that is none of ours."""
    from report_artifacts import profile, validation

    for name, make in EVERY_PRESET.items():
        make(folder / name)
    validation().write(folder / "validation.json")
    profile().write(folder / "profile.json")
    for topology, ms in (("v6e:1x1", 49.5), ("v5e:1x1", 124.9)):
        (folder / f"{topology[:3]}.json").write_text(estimate(topology, ms).model_dump_json())
    (folder / "other.json").write_text('{"a": 1}')
