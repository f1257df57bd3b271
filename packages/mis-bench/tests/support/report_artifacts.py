"""Artifacts of every kind, with figures of a plausible size, for tests of the report."""

import dataclasses
import datetime
from pathlib import Path
from typing import Literal

import numpy as np

from matrices import matrix
from mis_bench.artifacts.base import Artifact
from mis_bench.artifacts.comparison import ComparedTarget, Limits
from mis_bench.artifacts.matrix import ScoreMatrix
from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.artifacts.perf import Compared, Conditions, Figures, Judgement, PerfResult, Yardstick
from mis_bench.artifacts.profile import (
    Metadata,
    MetadataArtifacts,
    MetadataConfig,
    MetadataHardware,
    ProfileResult,
    ScoreProfileResult,
    StageTime,
)
from mis_bench.artifacts.run import RunResult, RunRow
from mis_bench.artifacts.stress import StressResult, StressTestResult
from mis_bench.artifacts.validation import (
    Difference,
    Gate,
    Isolation,
    ModelValidation,
    Performance,
    Sensitivity,
    ValidationResult,
)
from mis_bench.comparison.assemble import Evidence, compare
from mis_bench.comparison.series import Series
from mis_bench.environment import environment
from mis_bench.estimate import Estimate, Stage
from mis_bench.statistics import Interval
from mis_bench.targets.base import About
from mis_bench.workload import build_workload

HERE = environment().model_copy(update={"hardware": "Intel Xeon, 2 cores"})
SINCE = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
ENGINE = About("engine", "mis-engine", "/models/Qwen3-0.6B", dtype="bfloat16", options={"scoring_algorithm": "auto"})
CANONICAL = dataclasses.replace(build_workload(), apply_softmax=True)


def run_row(items: int, labels: int, milliseconds: float) -> RunRow:
    workload = build_workload(f"profile{labels}-128-{items}-20")
    return RunRow(
        name=f"batch-{items}-labels-{labels}",
        workload=WorkloadPart.of(workload),
        cache="cold",
        batch_size=items,
        num_labels=labels,
        model=ENGINE.model,
        dtype="bfloat16",
        num_runs=20,
        warmup_runs=5,
        successful_runs=20,
        success_rate=1,
        total_items=20 * items,
        seconds=20 * milliseconds / 1e3,
        throughput_ips=items / milliseconds * 1e3,
        throughput_rps=1e3 / milliseconds,
        throughput_interval=Interval(
            value=items / milliseconds * 1e3,
            low=items / milliseconds * 0.97e3,
            high=items / milliseconds * 1.04e3,
            confidence=0.95,
        ),
        latency_p50_ms=milliseconds,
        latency_p95_ms=milliseconds * 1.1,
        latency_p99_ms=milliseconds * 1.3,
        latency_mean_ms=milliseconds,
        latency_std_ms=milliseconds / 20,
        status="ok",
    )


def run() -> RunResult:
    sizes = (1, 2, 4, 8, 16, 32)
    rows = [run_row(items, labels, 70 + 13 * items + labels) for labels in (2, 4) for items in sizes]
    return RunResult(
        environment=HERE, run_id="r1", finished=SINCE, profile="standard", target=ENGINE, tp_size=1, concurrency=1,
        rate=None, seed=0, total_configurations=len(rows), total_runtime_seconds=99, rows=rows,
    )  # fmt: skip


def comparison() -> Artifact:
    scores = np.full((500, 2), 0.5)
    names = {"engine": 7.6, "transformers-shared": 155.0, "llama.cpp": 107.0, "transformers-serial": 8.2}
    targets = [
        ComparedTarget(name=name, backend=name, hardware=HERE.hardware, model="m", versions={"numpy": "2"})
        for name in names
    ]
    absent = ComparedTarget(name="vllm-cpu", unavailable="vLLM is published for CUDA only.")
    evidence = Evidence(
        workload=WorkloadPart.of(CANONICAL),
        targets=[*targets, absent],
        portable=[
            Series(name, 500 if "serial" not in name else 4, 500 if "serial" not in name else 4, tuple(
                seconds * drift for drift in (1.0, 1.05, 0.98, 1.01, 1.02)
            ))
            for name, seconds in names.items()
        ],
        answers={name: [scores + (0.03 if name == "transformers-shared" else 0)] for name in names}
        | {"transformers-serial": [scores[:4]]},
        measured_together=True,
        notes=["transformers-serial was asked for 4 of 500 items only."],
    )  # fmt: skip
    command = "mis-bench compare --target engine --target llama.cpp"
    return compare(evidence, reference="llama.cpp", limits=Limits(), command=command, environment=HERE)


def validation() -> ValidationResult:
    performance = {
        items: Performance(
            multi_ms=[one], serial_ms=[one * ratio], multi_p50_ms=one, serial_p50_ms=one * ratio,
            speedup_vs_serial_p50=ratio,
        )
        for items, one, ratio in ((2, 90.0, 1.8), (8, 130.0, 5.5), (32, 300.0, 14.0), (128, 900.0, 31.0))
    }  # fmt: skip
    gates = [
        Gate(name="isolation.permutation_max_abs_diff", measured=0.0, rule="at most", threshold=0.0, passed=True),
        Gate(name="equivalence_serial.max_abs_diff", measured=0.03, rule="at most", threshold=0.02, passed=False),
        Gate(name="performance.32.speedup_vs_serial_p50", measured=14.0, rule="at least", threshold=3.0, passed=True),
    ]
    model = ModelValidation(
        model=ENGINE.model, dtype="bfloat16", about=ENGINE, speedup_items=[2, 8, 32, 128],
        isolation=Isolation(permutation_max_abs_diff=0.0), sensitivity=Sensitivity(),
        equivalence_serial=Difference(max_abs_diff=0.03), equivalence_query_plus_delimiter=Difference(),
        performance=performance, gates=gates,
    )  # fmt: skip
    return ValidationResult.of(HERE, [ENGINE.model], [model], {})


def stress() -> StressResult:
    result = StressTestResult(
        name="large-batch-100", scenario="large-batch", workload=WorkloadPart.of(build_workload("load-100-100-20")),
        configuration={"batch_size": 100, "num_labels": 2}, tolerated=[], success=True, total_requests=3,
        successful_requests=3, failed_requests=0, failure_reason_counts={}, answers_afterwards=True,
        throughput_rps=1, throughput_ips=100, latency_p50_ms=900, latency_mean_ms=950, latency_p99_ms=1200, errors=[],
        duration_seconds=3,
    )  # fmt: skip
    return StressResult(
        environment=HERE,
        run_id="s",
        finished=SINCE,
        target=ENGINE,
        total_runtime_seconds=9,
        success=True,
        results=[result],
    )


def profile() -> ProfileResult:
    parts = {"attention": 40.0, "mlp": 90.0, "projections": 60.0, "norm and RoPE": 12.0, "head": 6.0, "embed": 0.2}
    total = sum(parts.values())
    return ProfileResult(
        environment=HERE, scenario="end-to-end", is_for_latency=True, target=ENGINE, points=[],
        metadata=Metadata(
            timestamp=SINCE, commit=None, branch=None, trigger="manual",
            config=MetadataConfig(profile="end-to-end", model="m", batch_sizes=[8], num_runs=1),
            hardware=MetadataHardware(device="cpu", device_count=1, zone=None),
            artifacts=MetadataArtifacts(traces=None, memory=None, benchmark="profile.json"),
        ),
        requests=[
            ScoreProfileResult(
                total_latency_ms=total, tokenization_ms=None, queue_wait_ms=None, model_forward_ms=None,
                device_to_host_ms=None, logprob_extraction_ms=None, softmax_ms=None, batch_size=8, num_items=8,
                num_label_tokens=2, sequence_lengths=[148],
            )
        ],
        stages=[StageTime(stage=name, ms=ms, share=ms / total, operations=28) for name, ms in parts.items()],
    )  # fmt: skip


def estimate(topology: str = "v6e:1x1", ms: float = 49.5) -> Estimate:
    parts = {"attention": 0.48, "mlp": 0.21, "projections and norms": 0.18, "norm and RoPE": 0.08, "head": 0.05}
    return Estimate(
        topology=topology, model="qwen3-0.6b", workload=CANONICAL.name, workload_sha256=build_workload().sha256, dp=1,
        tp=1, step_tokens=4096, requests=8, apply_softmax=False, steps=24, milliseconds=ms, items_per_second=5e5 / ms,
        stages=[Stage(name=name, milliseconds=ms * share, share=share) for name, share in parts.items()],
        roofline_items_per_second=29977, roofline_share=16.7 / ms, padded_share=0.02, memory_bytes=3661491200,
        memory_limit_bytes=34.4e9,
    )  # fmt: skip


def perf() -> PerfResult:
    def compared(name: str, change: float, status: Literal["ok", "fail"]) -> Compared:
        spread = Interval(value=change, low=change - 0.02, high=change + 0.03, confidence=0.95)
        base = Figures(
            name=name,
            batch_size=16,
            num_labels=2,
            model="m",
            dtype="bfloat16",
            workload_sha256="0" * 64,
            successful_runs=40,
            throughput_ips=250,
            cpu_ms=80,
            latency_p50_ms=60,
            latency_p95_ms=70,
            latency_p99_ms=80,
        )
        judgement = Judgement(status=status, by="clock", limit=0.1, throughput=spread, throughput_by_cpu_time=spread)
        head = base.model_copy(update={"throughput_ips": 250 * (1 + change)})
        return Compared(name=name, pairs=20, calls_of_turn=2, judgement=judgement, tails=[], base=base, head=head)

    return PerfResult(
        environment=HERE, base_commit="0" * 40, head_commit="1" * 40, head_is_dirty=False, sources_are_equal=False,
        conditions=Conditions(
            hardware=HERE.hardware, platform="cpu", model="m", model_sha256="0" * 64, dtype="bfloat16", native=True,
            versions={}, options={},
        ),
        sessions=2, seconds=120, confidence=0.99, yardstick=Yardstick(p50_ms=1, p95_ms=2),
        workloads=[compared("batch-16-labels-2", 0.01, "ok"), compared("batch-1-labels-2", -0.16, "fail")],
        notes=[], stored=None, verdict="fail",
    )  # fmt: skip


def sweep() -> ScoreMatrix:
    return matrix("engine", {1: 900.0, 2: 500.0, 4: 320.0}, confirmed={4: 315.0}, hourly_cost=0.64)


EVERYTHING = {
    "run": run, "comparison": comparison, "validation": validation, "stress": stress, "profile": profile, "perf": perf,
    "matrix": sweep,
}  # fmt: skip


def write_everything(folder: Path) -> None:
    """Write one artifact of every kind, two estimates, and a file that is none of ours."""
    for name, make in EVERYTHING.items():
        make().write(folder / name / f"{name}.json")
    for topology, ms in (("v6e:1x1", 49.5), ("v5e:1x1", 124.9)):
        (folder / f"{topology[:3]}.json").write_text(estimate(topology, ms).model_dump_json())
    (folder / "other.json").write_text('{"a": 1}')
