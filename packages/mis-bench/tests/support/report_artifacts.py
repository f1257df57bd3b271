"""A validation and a profile, with figures of a plausible size, for tests of the report."""

from mis_bench.profile.records import Point, Profile, Slice, Timed
from mis_bench.results.plan import WorkloadPart
from mis_bench.validation.gates import GatedFigure, ModelValidation, Timing, Validation
from mis_bench.workload import build_workload
from report_sources import HERE, about


def validation(**fields: object) -> Validation:
    speeds = ((2, 90.0, 1.8), (8, 130.0, 5.5), (32, 300.0, 14.0), (128, 900.0, 31.0))
    model = ModelValidation(
        model="/models/Qwen3-0.6B",
        dtype="bfloat16",
        about=about(),
        gates=[
            GatedFigure(name="isolation.permutation_max_abs_diff", threshold=0.0, measured=0.0),
            GatedFigure(name="equivalence_serial.max_abs_diff", threshold=0.02, measured=0.3, detail="planted"),
            GatedFigure(name="equivalence_serial.mean_abs_diff", threshold=0.01, detail="It was not answered."),
            GatedFigure(
                name="max_abs_diff_jax_multi_vs_torch_serial", threshold=0.02, detail="no PyTorch", is_waived=True
            ),
        ],
        timings=[Timing(items=items, multi_ms=[ms], serial_ms=[ms * ratio]) for items, ms, ratio in speeds],
    )
    return Validation(environment=HERE, planned=[model.model], models=[model]).model_copy(update=fields)


def profile() -> Profile:
    parts = {"attention": 40.0, "mlp": 90.0, "projections": 60.0, "norm and RoPE": 12.0, "head": 6.0, "embed": 0.2}
    total = sum(parts.values())
    stages = [Slice(name=name, ms=ms, count=28) for name, ms in parts.items()]
    workload = WorkloadPart.of(build_workload("probe-128-8-20"))
    point = Point(workload=workload, timed=[], profiled=[Timed(ms=total, stages_ms={})])
    return Profile(
        environment=HERE, scenario="end-to-end", target=about(), traces=[], points=[point], device=None,
        stages=stages, operations=[], host=[], memory=[],
    )  # fmt: skip
