"""Traces as they are read: what a TPU writes, made by hand, and what this machine writes (`test_profile.py`)."""

from pathlib import Path

import pytest

from mis_bench.profile.breakdown import by_operation, by_stage, covered, device_time, stage_of
from mis_bench.profile.records import ProfileError
from mis_bench.profile.trace import DeviceTrace, Mark, Operation, read_trace
from xplanes import BODY, encoded, instruction, tpu_trace


def gpu_trace() -> bytes:
    """A trace of kernels in a CUDA graph, as a GPU tells them, with a copy that belongs to no program."""
    scope = f"{BODY}/attention"
    module = encoded(
        (1, "jit_step"),
        (3, encoded((1, "main"), instruction("gemm_fusion.5", "fusion", f"{scope}/qkv/dot_general"),
                    instruction("pallas_call.1", "custom-call", f"{scope}/attention_gpu/segment_attention/pallas_call"),
                    instruction("loop_fusion.2", "fusion", f"{BODY}/mlp/gate_up/mul"))),
    )  # fmt: skip
    spans = [("gemm_fusion_5", "command_buffer_9", 0, 10), ("segment_attention", "command_buffer_9", 10, 60),
             ("a_librarys_product", "command_buffer_9", 70, 10), ("loop_fusion_2", "loop_fusion.2", 80, 20),
             ("MemcpyH2D", "", 100, 5)]  # fmt: skip
    stats = {"hlo_op": 1, "hlo_module": 2, "program_id": 3}
    events = []
    for number, (_, operation, begin, length) in enumerate(spans, 1):
        told = ((1, 1), (5, operation)), ((1, 2), (5, "jit_step")), ((1, 3), (4, 7))
        told = [(4, encoded(*stat)) for stat in told] if operation else []
        events.append((4, encoded((1, number), (2, begin * 1000), (3, length * 1000), *told)))
    names = [(4, encoded((1, n), (2, encoded((1, n), (2, name))))) for n, (name, *_) in enumerate(spans, 1)]
    stat_names = [(5, encoded((1, n), (2, encoded((1, n), (2, name))))) for name, n in stats.items()]
    device = encoded((2, "/device:GPU:0"), (3, encoded((2, "Stream #14(Compute)"), *events)), *names, *stat_names)
    described = encoded((1, 7), (2, "jit_step(7)"), (5, encoded((1, 1), (6, encoded((1, module))))))
    return encoded((1, device), (1, encoded((2, "/host:metadata"), (4, encoded((1, 7), (2, described))))))


def test_kernels_of_a_cuda_graph_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(gpu_trace())
    trace = read_trace(path)
    assert {each.name: each.ms for each in by_stage(trace.operations)} == {
        "qkv": pytest.approx(1e-5), "attention": pytest.approx(6e-5), "gate_up": pytest.approx(2e-5),
        "unattributed": pytest.approx(1e-5),
    }  # fmt: skip
    assert [each.name for each in by_operation(trace.operations)][:2] == ["segment_attention", "loop_fusion.2"]


CPU_SPANS = [
    ("pages.1", 0, 2), ("scatter.1", 10, 20), ("attention.1", 30, 40), ("pages.1", 100, 2), ("scatter.1", 110, 20),
]  # fmt: skip
"""Operations of a CPU, when they begin, and how long the call that launches them takes, in nanoseconds."""

CPU_ENDS = {0: 90, 1: 30, 2: 70, 3: 190, 4: 130}
"""When the second event of an operation comes, by its number; that of `pages.1` does once a thread is free."""


def cpu_trace() -> bytes:
    """A trace of two layers on a CPU: pages are written from a fusion that a second thread shares."""
    module = encoded(
        (1, "jit_step"),
        (3, encoded((1, "body"), instruction("pages.1", "fusion", f"{BODY}/write_pages/copy", 1),
                    instruction("bitcast.1", "bitcast", "", 2, [1]),
                    instruction("scatter.1", "fusion", f"{BODY}/write_pages/scatter", 3, [2]),
                    instruction("attention.1", "custom-call", f"{BODY}/attention_native/ffi_call", 4, [3]))),
    )  # fmt: skip
    names = ["pages.1", "scatter.1", "attention.1"]
    stats = [(5, encoded((1, n), (2, encoded((1, n), (2, name))))) for n, name in
             enumerate(["hlo_op", "hlo_module", "program_id", "_p", "_c"], 1)]  # fmt: skip
    metadata = [(4, encoded((1, n), (2, encoded((1, n), (2, name))))) for n, name in
                enumerate([*names, *(f"end: {name}" for name in names)], 1)]  # fmt: skip
    events = []
    for number, (name, begin, length) in enumerate(CPU_SPANS):
        kind, context = names.index(name) + 1, 70 + number
        told = ((1, 1), (5, name)), ((1, 2), (5, "jit_step")), ((1, 3), (4, 7)), ((1, 4), (4, context))
        facts = [(4, encoded(*each)) for each in told]
        events.append((4, encoded((1, kind), (2, begin * 1000), (3, length * 1000), *facts)))
        ended = (4, encoded((1, 5), (4, context)))
        events.append((4, encoded((1, kind + len(names)), (2, CPU_ENDS[number] * 1000), (3, 0), ended)))
    host = encoded((2, "/host:CPU"), (3, encoded((2, "worker"), *events)), *metadata, *stats)
    described = encoded((1, 7), (2, "jit_step(7)"), (5, encoded((1, 1), (6, encoded((1, module))))))
    return encoded((1, host), (1, encoded((2, "/host:metadata"), (4, encoded((1, 7), (2, described))))))


def test_an_operation_is_over_when_its_result_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(cpu_trace())
    found = [(each.name, each.begin_ns, each.end_ns) for each in read_trace(path).operations]
    assert found == [
        ("pages.1", 0, 10), ("scatter.1", 10, 30), ("attention.1", 30, 70),
        ("pages.1", 100, 110), ("scatter.1", 110, 130),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> DeviceTrace:
    path = tmp_path_factory.mktemp("trace") / "x.xplane.pb"
    path.write_bytes(tpu_trace())
    return read_trace(path)


def test_operations_of_a_tpu_are_read_without_their_outer_loops(trace: DeviceTrace) -> None:
    assert [each.name for each in trace.operations].count("down.1") == 2
    assert "while.1" not in {each.name for each in trace.operations}
    assert {(each.device, each.program) for each in trace.operations} == {("/device:TPU:0", "jit_step")}


def test_stages_are_those_of_the_named_scopes(trace: DeviceTrace) -> None:
    stages = by_stage(trace.operations)
    assert {each.name: round(each.ms * 1e6) for each in stages} == {
        "norm": 20, "down": 50, "rest_of_layers": 20, "unattributed": 5,
    }  # fmt: skip
    assert [each.count for each in stages] == [2, 3, 2, 1]


def test_hot_spots_come_first(trace: DeviceTrace) -> None:
    first, *_ = by_operation(trace.operations, most=2)
    assert (first.name, first.stage, first.count) == ("last.1", "down", 1)
    assert len(by_operation(trace.operations, most=2)) == 2


def test_time_is_split_between_devices_and_host(trace: DeviceTrace) -> None:
    time = device_time(trace.operations, [Mark("request", 0, 190)])
    assert time is not None
    assert (time.wall_ms, time.busy_ms) == pytest.approx((190e-6, 95e-6))
    assert time.busy_share == pytest.approx(0.5)


def test_spans_that_overlap_are_covered_once() -> None:
    assert covered([(5, 10), (0, 6), (20, 21), (2, 3)]) == 11


@pytest.mark.parametrize(
    ("scope", "stage"),
    [
        ("jit(step)/layers/while/body/closed_call/attention/attention_native/ffi_call", "attention"),
        ("jit(step)/last_layer/attention/norm_rope_xla/mul", "norm_rope"),
        ("jit(step)/last_layer/attention/write_pages/scatter", "write_pages"),
        ("jit(step)/last_layer/attention/gather", "rest_of_layers"),
        ("jit(<lambda>)/log_sum_exp/while/body/exp", "log_sum_exp"),
        ("jit(step)/broadcast", "unattributed"),
        ("", "unattributed"),
    ],
)
def test_the_innermost_scope_decides(scope: str, stage: str) -> None:
    assert stage_of(scope) == stage


def test_no_operations_make_no_tables() -> None:
    assert (by_stage([]), by_operation([]), device_time([], [])) == ([], [], None)


def test_an_operation_of_an_unknown_program_is_unattributed() -> None:
    stray = Operation("/device:TPU:0", "jit_other", "x", "", "", 0, 1)
    assert [each.name for each in by_stage([stray])] == ["unattributed"]


def test_a_broken_trace_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.xplane.pb"
    broken.write_bytes(b"\xff\xff not a trace")
    with pytest.raises(ProfileError, match="cannot be read as a trace"):
        read_trace(broken)
